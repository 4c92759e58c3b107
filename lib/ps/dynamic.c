/* dynamic.c - see dynamic.h. */
#include "ps/dynamic.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "ps/map.h"

void ps_dynamic_init(struct ps_dynamic *d, uint32_t stride, uint32_t admit_after)
{
    CHECK(stride > 0 && admit_after > 0);
    *d = (struct ps_dynamic){ .stride = stride, .admit_after = admit_after, .is_complete = true };
}

void ps_dynamic_fini(struct ps_dynamic *d)
{
    free(d->ids);
    free(d->floats);
    free(d->owners);
    free(d->index);
    *d = (struct ps_dynamic){ 0 };
}

/* ---- memory ---- */

enum { LEAST_ROOM = 8, MOST_IDS = 1 << 30 };

/* Returns the room of an array with room for `room` of which n are used, after `more` are added. */
static uint64_t grown_room(uint32_t room, uint32_t n, uint32_t more)
{
    uint64_t wanted = (uint64_t)n + more;

    if (wanted <= room)
        return room;
    wanted += wanted / 4;
    return wanted < LEAST_ROOM ? LEAST_ROOM : wanted;
}

static uint64_t index_places(uint64_t room_ids)
{
    uint64_t places = room_ids > 0 ? 2 * LEAST_ROOM : 0;

    while (places < 2 * room_ids)
        places *= 2;
    return places;
}

static uint64_t bytes_of(const struct ps_dynamic *d, uint64_t room_ids, uint64_t room_rows)
{
    return room_ids * sizeof(*d->ids) + index_places(room_ids) * sizeof(*d->index) +
           room_rows * (d->stride * sizeof(*d->floats) + sizeof(*d->owners));
}

uint64_t ps_dynamic_bytes(const struct ps_dynamic *d)
{
    return bytes_of(d, d->room_ids, d->room_rows);
}

uint64_t ps_dynamic_growth(const struct ps_dynamic *d, uint32_t n_ids, uint32_t n_rows)
{
    return bytes_of(d, grown_room(d->room_ids, d->n_ids, n_ids),
                    grown_room(d->room_rows, d->n_rows, n_rows)) -
           ps_dynamic_bytes(d);
}

static uint32_t place_of(const struct ps_dynamic *d, uint64_t row)
{
    return (uint32_t)ps_mix64((uint64_t)ps_id_of_row(row)) & d->mask; /* its top bits are the shard */
}

static void insert(struct ps_dynamic *d, uint32_t i)
{
    uint32_t at = place_of(d, d->ids[i].row);

    while (d->index[at] != 0)
        at = (at + 1) & d->mask;
    d->index[at] = i + 1;
}

static void index_all(struct ps_dynamic *d)
{
    memset(d->index, 0, ((size_t)d->mask + 1) * sizeof(*d->index));
    for (uint32_t i = 0; i < d->n_ids; i++)
        insert(d, i);
}

static int no_memory(struct err *err)
{
    return err_set(err, ERR_NOMEM, "rows of a dynamic table: out of memory");
}

static int grow_ids(struct ps_dynamic *d, uint64_t room, struct err *err)
{
    uint64_t places = index_places(room);
    struct ps_id *ids;
    uint32_t *index;

    if (room > MOST_IDS)
        return err_set(err, ERR_NOMEM, "a shard of a dynamic table exceeds 2^30 rows");
    index = malloc(places * sizeof(*index));
    ids = index != NULL ? realloc(d->ids, room * sizeof(*ids)) : NULL;
    if (ids == NULL) {
        free(index);
        return no_memory(err);
    }
    free(d->index);
    d->ids = ids;
    d->index = index;
    d->room_ids = (uint32_t)room;
    d->mask = (uint32_t)places - 1;
    index_all(d);
    return 0;
}

static int grow_rows(struct ps_dynamic *d, uint64_t room, struct err *err)
{
    uint32_t *owners;
    float *floats;

    if (room > MOST_IDS || room > SIZE_MAX / sizeof(*floats) / d->stride)
        return no_memory(err);
    owners = realloc(d->owners, room * sizeof(*owners));
    if (owners == NULL)
        return no_memory(err);
    d->owners = owners;
    floats = realloc(d->floats, room * d->stride * sizeof(*floats));
    if (floats == NULL)
        return no_memory(err);
    d->floats = floats;
    d->room_rows = (uint32_t)room;
    return 0;
}

int ps_dynamic_make_room(struct ps_dynamic *d, uint32_t n_ids, uint32_t n_rows, struct err *err)
{
    uint64_t room_ids = grown_room(d->room_ids, d->n_ids, n_ids);
    uint64_t room_rows = grown_room(d->room_rows, d->n_rows, n_rows);
    int rc = 0;

    if (room_ids > d->room_ids)
        rc = grow_ids(d, room_ids, err);
    if (rc == 0 && room_rows > d->room_rows)
        rc = grow_rows(d, room_rows, err);
    return rc;
}

/* ---- rows ---- */

struct ps_id *ps_dynamic_find(const struct ps_dynamic *d, uint64_t row)
{
    uint32_t at;

    if (d->n_ids == 0)
        return NULL;
    for (at = place_of(d, row); d->index[at] != 0; at = (at + 1) & d->mask)
        if (d->ids[d->index[at] - 1].row == row)
            return &d->ids[d->index[at] - 1];
    return NULL;
}

struct ps_id *ps_dynamic_add(struct ps_dynamic *d, uint64_t row, uint64_t last_step, uint32_t count)
{
    CHECK(d->n_ids < d->room_ids);
    d->ids[d->n_ids] = (struct ps_id){ row, last_step, count, PS_NO_FLOATS };
    insert(d, d->n_ids);
    return &d->ids[d->n_ids++];
}

struct ps_id *ps_dynamic_count(struct ps_dynamic *d, uint64_t row, uint64_t step)
{
    struct ps_id *id = ps_dynamic_find(d, row);

    if (id == NULL)
        return ps_dynamic_add(d, row, step, 1);
    id->count += id->count < UINT32_MAX;
    id->last_step = step;
    return id;
}

float *ps_dynamic_admit(struct ps_dynamic *d, struct ps_id *id)
{
    CHECK(id->at == PS_NO_FLOATS && d->n_rows < d->room_rows);
    id->at = d->n_rows++;
    d->owners[id->at] = (uint32_t)(id - d->ids);
    return ps_dynamic_floats(d, id);
}

void ps_dynamic_clear(struct ps_dynamic *d)
{
    d->n_ids = d->n_rows = 0;
    if (d->index != NULL)
        index_all(d);
}

/* ---- removing rows ---- */

/* First the rows that are not admitted, then the others; each group with the first ones to remove first. */
static int by_age(const void *pa, const void *pb)
{
    const struct ps_id *a = pa, *b = pb;
    bool has_a = a->at != PS_NO_FLOATS, has_b = b->at != PS_NO_FLOATS;

    if (has_a != has_b)
        return has_a ? 1 : -1;
    if (a->last_step != b->last_step)
        return a->last_step < b->last_step ? -1 : 1;
    return a->row < b->row ? -1 : a->row > b->row;
}

/* Moves the floats of the rows that are left to the front. owners: PS_NO_FLOATS where a row is removed. */
static void compact_floats(struct ps_dynamic *d)
{
    uint32_t n = 0;

    for (uint32_t at = 0; at < d->n_rows; at++) {
        if (d->owners[at] == PS_NO_FLOATS)
            continue;
        if (n < at) {
            memcpy(d->floats + (size_t)n * d->stride, d->floats + (size_t)at * d->stride,
                   d->stride * sizeof(*d->floats));
            d->owners[n] = d->owners[at];
            d->ids[d->owners[n]].at = n;
        }
        n++;
    }
    d->n_rows = n;
}

/* Removes the ids with count 0. */
static void remove_marked(struct ps_dynamic *d)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < d->n_ids; i++) {
        struct ps_id *id = &d->ids[i];

        if (id->at != PS_NO_FLOATS)
            d->owners[id->at] = id->count > 0 ? n : PS_NO_FLOATS;
        if (id->count > 0)
            d->ids[n++] = *id;
    }
    if (n == d->n_ids)
        return;
    d->n_ids = n;
    compact_floats(d);
    index_all(d);
}

/* Marks the oldest rows of both groups that exceed max_rows. */
static void mark_excess(struct ps_dynamic *d, uint64_t max_rows)
{
    uint32_t n_waiting = d->n_ids - d->n_rows;

    qsort(d->ids, d->n_ids, sizeof(*d->ids), by_age);
    for (uint32_t i = 0; i + max_rows < n_waiting; i++)
        d->ids[i].count = 0;
    for (uint32_t i = 0; i + max_rows < d->n_rows; i++)
        d->ids[n_waiting + i].count = 0;
}

void ps_dynamic_sweep(struct ps_dynamic *d, uint64_t oldest, uint64_t max_rows)
{
    for (uint32_t i = 0; i < d->n_ids; i++)
        if (d->ids[i].last_step < oldest)
            d->ids[i].count = 0;
    remove_marked(d);
    if (max_rows == 0 || (d->n_rows <= max_rows && d->n_ids - d->n_rows <= max_rows))
        return;
    mark_excess(d, max_rows);
    remove_marked(d);
}

/* ---- order ---- */

static void sift_down(const struct ps_dynamic *d, uint32_t *heap, uint32_t n, uint32_t at)
{
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        uint32_t moved = heap[at];

        child += child + 1 < n && d->ids[heap[child + 1]].row > d->ids[heap[child]].row;
        if (d->ids[heap[child]].row <= d->ids[moved].row)
            return;
        heap[at] = heap[child];
        heap[child] = moved;
    }
}

/* A heap with the highest row on top keeps the `most` lowest rows; then it is sorted. */
uint32_t ps_dynamic_list(const struct ps_dynamic *d, uint64_t first, uint32_t most, uint32_t *order,
                         bool *is_last)
{
    uint32_t n = 0;

    *is_last = true;
    for (uint32_t i = 0; i < d->n_ids; i++) {
        if (d->ids[i].row < first)
            continue;
        if (n < most) {
            order[n++] = i;
            for (uint32_t k = n / 2; n == most && k-- > 0;)
                sift_down(d, order, n, k);
            continue;
        }
        *is_last = false;
        if (n == 0 || d->ids[i].row > d->ids[order[0]].row)
            continue;
        order[0] = i;
        sift_down(d, order, n, 0);
    }
    for (uint32_t k = n / 2; n < most && k-- > 0;)
        sift_down(d, order, n, k);
    for (uint32_t end = n; end > 1; end--) {
        uint32_t top = order[0];

        order[0] = order[end - 1];
        order[end - 1] = top;
        sift_down(d, order, end - 1, 0);
    }
    return n;
}
