/* ragged.c - converts a flat list to padded rows of different lengths, in place. The values are
 * contiguous at the start of their buffer. The rows are moved from the last to the first, because
 * the new position of a row is never before its old position. */
#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "data/data_priv.h"

struct rows {
    const int64_t *at; /* lengths or splits of the record */
    bool splits;       /* `at` contains splits */
    uint64_t n;        /* number of rows */
};

static int64_t length_of(const struct rows *rows, uint64_t r)
{
    return rows->splits ? rows->at[r + 1] - rows->at[r] : rows->at[r];
}

/* Checks that all lengths are between 0 and `most`, and that their sum is `items`. */
static int check(const struct rows *rows, const struct data_feature *f, uint64_t most,
                 uint64_t items, struct err *err)
{
    uint64_t sum = 0;

    if (rows->splits && rows->n > 0 && rows->at[0] != 0)
        return err_set(err, ERR_INPUT, "feature '%s': the splits of '%s' begin with %" PRId64
                       ", expected 0", f->name, f->rows_by, rows->at[0]);
    for (uint64_t r = 0; r < rows->n; r++) {
        int64_t length;

        if (rows->splits ? __builtin_sub_overflow(rows->at[r + 1], rows->at[r], &length)
                         : (length = rows->at[r], false))
            length = -1;
        if (length < 0 || (uint64_t)length > most)
            return err_set(err, ERR_INPUT,
                           "feature '%s': row %" PRIu64 " has %" PRId64
                           " items according to '%s', expected 0 "
                           "to %" PRIu64,
                           f->name, r, length, f->rows_by, most);
        sum += (uint64_t)length;
    }
    if (sum != items)
        return err_set(err, ERR_INPUT,
                       "feature '%s' has %" PRIu64
                       " items, but its rows according to '%s' have %" PRIu64,
                       f->name, items, f->rows_by, sum);
    return 0;
}

int data_pad_rows(struct data_decoder *d, uint32_t i, struct err *err)
{
    const struct data_set *s = d->s;
    const struct data_feature *f = &s->features[i];
    uint32_t by = s->layout.rows_by[i];
    uint64_t width = s->layout.inner[i] / (uint64_t)f->shape.dim[1]; /* values per item */
    uint64_t items = d->counts[i] / width, row = (uint64_t)f->shape.dim[1];
    size_t bytes = width * tensor_dtype_bytes(f->stored);
    struct rows rows = { .at = d->stored[by], .splits = f->rows == DATA_ROW_SPLITS,
                         .n = d->counts[by] };
    uint8_t *room = d->room + s->layout.stored_at[i];
    uint64_t start = items;

    if (rows.splits && rows.n > 0)
        rows.n--; /* the last split is the end */
    if (d->counts[i] % width != 0)
        return err_set(err, ERR_INPUT,
                       "feature '%s' has %" PRIu64 " values, expected a multiple of %" PRIu64,
                       f->name, d->counts[i], width);
    if (check(&rows, f, row, items, err) < 0)
        return ERR_INPUT;
    if (d->counts[i] == s->layout.elements[i])
        return 0; /* all rows are full, so no value moves */
    CHECK(d->stored[i] == room);
    data_pad(f, room, d->counts[i], s->layout.elements[i]);
    for (uint64_t r = rows.n; r-- > 0;) {
        uint64_t length = (uint64_t)length_of(&rows, r);

        start -= length;
        memmove(room + r * row * bytes, room + start * bytes, length * bytes);
        data_pad(f, room + r * row * bytes, length * width, row * width);
    }
    return 0;
}
