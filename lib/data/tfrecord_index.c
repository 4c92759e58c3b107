/* tfrecord_index.c - indexes a TFRecord file by reading the header of each record. */
#include <inttypes.h>
#include <stdio.h>

#include "base/err.h"
#include "data/data_priv.h"
#include "data/tfrecord.h"

enum {
    SMALL_BYTES = 32 << 10, /* after a larger record only the next header is read */
    FRAME_BYTES = TFRECORD_HEAD_BYTES + TFRECORD_TAIL_BYTES,
};

/* Reads the header of the record at `at` and sets *length to the length of its data. On entry
 * *length is the length of the previous record. */
static int scan_record(struct data_scan *w, uint64_t at, uint64_t *length, struct err *err)
{
    /* The stored CRC of the previous record's data is before the header; both are compared by content.c. */
    uint64_t before = at > 0 ? TFRECORD_TAIL_BYTES : 0;
    uint64_t left = w->f->bytes - at, held, want = before + TFRECORD_HEAD_BYTES;
    const uint8_t *head;
    int rc;

    if (left < FRAME_BYTES) {
        err_set(err, ERR_CORRUPT,
                "%" PRIu64 " bytes left, expected a record (at least %d bytes) or the end: the "
                "file is truncated",
                left, FRAME_BYTES);
        return data_scan_error(w, at, ERR_CORRUPT, err);
    }
    if (*length <= SMALL_BYTES)
        want = DATA_BLOCK_BYTES;
    rc = data_scan_fetch(w, at - before, before + TFRECORD_HEAD_BYTES, want, &head, &held, err);
    if (rc < 0)
        return rc;
    data_content_add(w->f->content, w->f->bytes, at - before, head, before + TFRECORD_HEAD_BYTES);
    head += before;
    rc = tfrecord_head(head, DATA_RECORD_BYTES_MAX, length, err);
    if (rc < 0)
        return data_scan_error(w, at, rc, err);
    if (*length > left - FRAME_BYTES) {
        err_set(err, ERR_CORRUPT,
                "record of %" PRIu64 " bytes, but only %" PRIu64 " are left: the file is truncated",
                *length, left - FRAME_BYTES);
        return data_scan_error(w, at, ERR_CORRUPT, err);
    }
    return 0;
}

/* Adds the stored CRC of the last record, which ends the file. */
static int scan_end(struct data_scan *w, struct err *err)
{
    uint64_t at = w->f->bytes - TFRECORD_TAIL_BYTES, held;
    const uint8_t *tail;
    int rc = data_scan_fetch(w, at, TFRECORD_TAIL_BYTES, TFRECORD_TAIL_BYTES, &tail, &held, err);

    if (rc == 0)
        data_content_add(w->f->content, w->f->bytes, at, tail, TFRECORD_TAIL_BYTES);
    return rc;
}

/* Skips and reports the rest of the file: after a damaged header the start of the next record is
 * unknown. */
static int skip_rest(struct data_scan *w, uint64_t at, struct err *err)
{
    const struct data_retry *p = &w->s->retry;
    char text[ERR_TEXT_BYTES];

    snprintf(text, sizeof(text), "%s; the %" PRIu64 " following bytes are skipped",
             err != NULL ? err->text : "a damaged header", w->f->bytes - at);
    atomic_fetch_add(&w->s->n_skipped, 1);
    if (p->on_warning != NULL)
        p->on_warning(p->arg, text);
    return 0;
}

int tfrecord_index(struct data_scan *w, struct err *err)
{
    uint64_t at = 0, length = 0;
    int rc = 0;

    while (at < w->f->bytes) {
        if (at - w->reported_at >= DATA_BLOCK_BYTES)
            rc = data_scan_report(w, at, err);
        if (rc == 0)
            rc = scan_record(w, at, &length, err);
        if (rc == ERR_CORRUPT && at == 0) { /* not a record that was damaged, but a file of another format */
            int other = data_scan_refuse_kind(
                w, "a TFRecord file",
                "convert it (trainerctl convert --help), or name its format in data.format", err);

            if (other < 0)
                return other;
        }
        if (rc == ERR_CORRUPT && w->s->skip_bad) {
            rc = skip_rest(w, at, err);
            break;
        }
        if (rc == 0)
            rc = data_scan_add(w, at, err);
        if (rc < 0)
            return rc;
        at += FRAME_BYTES + length;
    }
    if (at > 0 && at == w->f->bytes)
        rc = scan_end(w, err);
    return rc < 0 ? rc : data_scan_add(w, at, err);
}
