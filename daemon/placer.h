/* placer.h - places tasks in inferred racks, if this task leads and communication.topology is "auto": passes the windows of the
 * group to placement.h, and regroups. All functions run on the loop. */
#ifndef DAEMON_PLACER_H
#define DAEMON_PLACER_H

#include <stdbool.h>

struct advice_group;
struct group_view;
struct placer;
struct rdzv;
struct settled;

/* `s` is borrowed. Never returns NULL (CHECK). */
struct placer *placer_new(const struct settled *s);
void placer_free(struct placer *p); /* NULL is allowed */
/* The leader judged these windows (advisor.h) of the tasks of `v`, the complete view in the order of base/group_order.h.
 * Returns true if it regroups the tasks. */
bool placer_judge(struct placer *p, const struct advice_group *windows, const struct group_view *v,
                  struct rdzv *z);

#endif
