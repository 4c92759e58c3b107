/* scan.c - what the formats need to find the records of a file: the bytes of the file in blocks,
 * and the list of starts. */
#include <inttypes.h>

#include "base/err.h"
#include "base/file_kind.h"
#include "base/vec.h"
#include "data/data_priv.h"

int data_scan_error(const struct data_scan *w, uint64_t at, int rc, struct err *err)
{
    return err_wrap(err, rc, "'%s': offset %" PRIu64, w->f->origin, at);
}

int data_scan_report(struct data_scan *w, uint64_t at, struct err *err)
{
    if (!w->on_progress(w->arg, at - w->reported_at, w->n_starts - w->reported_n))
        return err_set(err, ERR_CANCELED, "index '%s': canceled", w->f->origin);
    w->reported_at = at;
    w->reported_n = w->n_starts;
    return 0;
}

int data_scan_fetch(struct data_scan *w, uint64_t at, uint64_t need, uint64_t want,
                    const uint8_t **bytes, uint64_t *held, struct err *err)
{
    int rc = 0;

    if (at < w->from || at + need > w->from + w->held) {
        if (want > w->f->bytes - at)
            want = w->f->bytes - at;
        rc = data_file_read_again(&w->s->retry, w->fd, w->f->path, w->block, want, at, err);
        w->from = at;
        w->held = rc == 0 ? want : 0;
    }
    *bytes = w->block + (at - w->from);
    *held = w->from + w->held - at;
    return rc;
}

int data_scan_refuse_kind(struct data_scan *w, const char *expected, const char *remedy,
                          struct err *err)
{
    uint64_t n = w->f->bytes < FILE_KIND_BYTES ? w->f->bytes : FILE_KIND_BYTES, held;
    const struct file_kind *kind;
    const uint8_t *head;
    int rc = n > 0 ? data_scan_fetch(w, 0, n, n, &head, &held, err) : 0;

    if (n == 0 || rc < 0)
        return rc;
    kind = file_kind_of(head, n);
    return kind == NULL
               ? 0
               : err_set(err, ERR_INPUT, "'%s' is %s, expected %s: %s", w->f->origin, kind->what,
                         expected, kind->remedy != NULL ? kind->remedy : remedy);
}

int data_scan_add(struct data_scan *w, uint64_t at, struct err *err)
{
    if (!vec_grow((void **)&w->starts, &w->cap_starts, w->n_starts + 1, sizeof(*w->starts)))
        return err_set(err, ERR_NOMEM, "index '%s': out of memory", w->f->origin);
    w->starts[w->n_starts++] = at;
    return 0;
}
