/* inspect_attention.h - the part of `trainerctl inspect` about attention. */
#ifndef DAEMON_INSPECT_ATTENTION_H
#define DAEMON_INSPECT_ATTENTION_H

#include <stdint.h>

struct arena;
struct buf;
struct err;
struct plan;
struct plan_attention;

struct inspect_attention {
    const struct plan_attention *at; /* [n]; the arena owns it */
    uint32_t n;
};

/* Copies the attentions of the plan into `mem`; replaces the previous content of *a.
 * Errors: ERR_NOMEM. */
int inspect_attention_copy(struct inspect_attention *a, const struct plan *p, struct arena *mem,
                           struct err *err);
/* Prints a line for each attention on stdout. */
void inspect_attention_print(const struct inspect_attention *a);
/* Appends a comma and the key "attention" with a list. */
void inspect_attention_json(const struct inspect_attention *a, struct buf *out);

#endif
