/* group_order.h - the order in which the members of a view get their ranks in the communicator.
 *
 * Ranks are dealt in this order, and with them lanes. Neighbouring ranks exchange most, so the members of a
 * rack should be neighbours: with halving/doubling and R racks of equal size, a power of two, a rack then
 * sends 2 (1 - 1/R) vectors to the others for each all-reduce; with alternating racks of m hosts m times
 * that. The order decides no bit: sums follow the tree over lanes.
 *
 *   all training tasks have a location   by location, then by rank. The zone of the member 0 precedes the other
 *                                        zones, its rack the other racks, its host the other hosts
 *   otherwise                            by rank, as in the view
 *
 * In both cases member 0 stays the first, and parameter servers follow the training tasks by rank. The order is a
 * function of the view, so all members compute the same one. */
#ifndef BASE_GROUP_ORDER_H
#define BASE_GROUP_ORDER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/group_view.h"

/* Copies a view into `memory`, with its members in this order; self, coordinator and newest_member are
 * their new indices. The pieces are copied unchanged: their ranks always count over the members in this order. Not
 * for group_view_find(), which needs the order of ranks. Returns false if there is no memory; *out is then
 * unchanged. */
bool group_order_copy(const struct group_view *v, struct arena *memory, struct group_view *out);

enum { GROUP_ORDER_TEXT_BYTES = 1280 };

/* Writes a sentence: the order and its reason. `v`: from group_order_copy(); n: GROUP_ORDER_TEXT_BYTES for the
 * whole sentence. Returns `out`. */
const char *group_order_describe(const struct group_view *v, char *out, size_t n);

/* Returns whether a training task has a location; whether all have one. */
bool group_order_has_location(const struct group_view *v);
bool group_order_is_located(const struct group_view *v);

#endif
