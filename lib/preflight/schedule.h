/* schedule.h - the fixed order in which pairs are measured. Pure.
 *
 * The circle method for a round-robin tournament: in each round every task has at most one partner,
 * and after all rounds every pair has met once. So only disjoint pairs measure at the same time. */
#ifndef PREFLIGHT_SCHEDULE_H
#define PREFLIGHT_SCHEDULE_H

#include <stdint.h>

/* Returns the number of rounds: world - 1, or world if it is odd; 0 for one task. */
uint32_t schedule_rounds(uint32_t world);
/* Returns the partner of the task in the round, PREFLIGHT_NO_TASK if it has none.
 * task < world, round < schedule_rounds(world). */
uint32_t schedule_partner(uint32_t world, uint32_t round, uint32_t task);

#endif
