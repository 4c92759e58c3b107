/* traffic.h - what an all-reduce sends between groups of members. Pure; makes no connection. */
#ifndef COMM_TRAFFIC_H
#define COMM_TRAFFIC_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct group_view;
struct lane_tree;

/* Computes the most vectors that the members of a group send to those of other groups in a large all-reduce. `v`: without pieces, in
 * the order of base/group_order.h, of which the locations decide the levels of the exchange. tree, lanes: of comm_share_view(), as
 * which the replicas divide the lanes. groups: [n_members] number of the group of each member, any numbers. Errors: ERR_INPUT (the members are no
 * group), ERR_NOMEM. */
int comm_traffic(const struct group_view *v, const struct lane_tree *tree, uint32_t lanes,
                 bool shared_memory, const uint32_t *groups, double *out, struct err *err);

#endif
