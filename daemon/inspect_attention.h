/* inspect_attention.h - what `trainerctl inspect` says of the attentions of a network. */
#ifndef DAEMON_INSPECT_ATTENTION_H
#define DAEMON_INSPECT_ATTENTION_H

#include <stdint.h>

struct arena;
struct buf;
struct err;
struct plan;
struct plan_attention;

struct inspect_attention {
    const struct plan_attention *at; /* [n]; in the arena */
    uint32_t n;
};

/* Copies what the plan says; replaces what is there. Errors: ERR_NOMEM. */
int inspect_attention_take(struct inspect_attention *a, const struct plan *p, struct arena *mem, struct err *err);
/* A line for each on stdout. */
void inspect_attention_print(const struct inspect_attention *a);
/* The key "attention" and a list; begins with a comma. */
void inspect_attention_json(const struct inspect_attention *a, struct buf *out);

#endif
