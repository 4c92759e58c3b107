#include "preflight/schedule.h"

#include "preflight/types.h"

uint32_t schedule_rounds(uint32_t world)
{
    if (world < 2)
        return 0;
    return world % 2 == 0 ? world - 1 : world;
}

/* Tasks 0 .. m - 1 form a circle, where m is the number of rounds; a and b meet in round
 * (a + b) mod m. The task that would meet itself meets task m, which exists in an even world. */
uint32_t schedule_partner(uint32_t world, uint32_t round, uint32_t task)
{
    uint32_t m = schedule_rounds(world), partner;

    if (task == m) /* outside of the circle: 2 p = round (mod m), and m is odd */
        return round % 2 == 0 ? round / 2 : (round + m) / 2;
    partner = (round + m - task) % m;
    if (partner != task)
        return partner;
    return m < world ? m : PREFLIGHT_NO_TASK;
}
