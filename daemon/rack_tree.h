/* rack_tree.h - the shape of the tree over lanes (micro-batches) in which the racks of a group are subtrees: advice for
 * /train/lane_tree. Pure. */
#ifndef DAEMON_RACK_TREE_H
#define DAEMON_RACK_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct group_view;
struct lane_tree;

enum { RACK_TREE_TEXT_BYTES = 320 };

/* `v`: of all training tasks, in the order of base/group_order.h, without pieces; all have a location. If racks send
 * less with another tree over so many lanes, which their number of replicas divides, writes a sentence with that tree and
 * returns true. Groups of more than 256 tasks: false. */
bool rack_tree_advise(const struct group_view *v, const struct lane_tree *present, uint32_t lanes,
                      bool shared_memory, char out[RACK_TREE_TEXT_BYTES]);

#endif
