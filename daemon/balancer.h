/* balancer.h - moves lanes (micro-batches) from slow to fast tasks, if this task leads: passes the
 * windows of the group to balance.h, and regroups. All functions run on the loop. */
#ifndef DAEMON_BALANCER_H
#define DAEMON_BALANCER_H

struct advice_group;
struct balancer;
struct group_view;
struct rdzv;
struct settled;

/* `s` is borrowed. Never returns NULL (CHECK). */
struct balancer *balancer_new(const struct settled *s);
void balancer_free(struct balancer *b); /* NULL is allowed */
/* The leader judged these windows (advisor.h) of the tasks of `v`, the complete view. */
void balancer_judge(struct balancer *b, const struct advice_group *windows,
                    const struct group_view *v, struct rdzv *z);

#endif
