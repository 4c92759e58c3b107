/* message.c - reads messages; see message.h. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "ckpt/shard_files.h"
#include "opts/graph.h"
#include "opts/ps.h"
#include "ps/message_priv.h"
#include "ps/store.h"
#include "ps/units.h"

const struct kind message_kinds[PS_KINDS] = {
    [PS_SETUP] = { "SETUP", false, false, false, true, 0 },
    [PS_QUERY] = { "QUERY", false, false, false, false, 0 },
    [PS_HELD] = { "HELD", false, false, false, true, 1 },
    [PS_BEGIN] = { "BEGIN", false, false, false, true, 3 },
    [PS_FOLLOW] = { "FOLLOW", false, false, false, false, 1 },
    [PS_FETCH] = { "FETCH", true, false, false, false, 1 },
    [PS_COPY] = { "COPY", true, false, true, false, 0 },
    [PS_READY] = { "READY", false, false, false, false, 0 },
    [PS_PULL] = { "PULL", true, true, false, false, 0 },
    [PS_ROWS] = { "ROWS", true, false, true, false, 0 },
    [PS_PUSH] = { "PUSH", true, true, true, false, 0 },
    [PS_VOTE] = { "VOTE", false, false, false, false, 0 },
    [PS_COMMIT] = { "COMMIT", false, false, false, true, 0 },
    [PS_END] = { "END", false, false, false, false, 0 },
    [PS_SAVE] = { "SAVE", false, false, false, false, 1 },
    [PS_LOAD] = { "LOAD", false, false, false, false, 1 },
    [PS_POLL] = { "POLL", false, false, false, false, 0 },
    [PS_DONE] = { "DONE", false, false, false, false, 0 },
    [PS_WAIT] = { "WAIT", false, false, false, false, 0 },
    [PS_COPY_IDS] = { "COPY_IDS", true, true, true, false, 0 },
    [PS_COUNT] = { "COUNT", false, false, false, false, 1 },
    [PS_COUNTS] = { "COUNTS", false, false, false, false, 0 },
    [PS_LIST] = { "LIST", false, false, false, false, 1 },
    [PS_LISTED] = { "LISTED", true, true, false, false, 0 },
    [PS_LIMIT] = { "LIMIT", false, false, false, false, 0 },
    [PS_NEXT] = { "NEXT", false, false, false, false, 0 },
    [PS_GO] = { "GO", false, false, false, false, 0 },
    [PS_TICKET] = { "TICKET", false, false, false, false, 0 },
    [PS_ORDER] = { "ORDER", false, false, false, false, 0 },
};

struct reader {
    const uint8_t *at;
    size_t left;
    const char *kind;
    struct err *err;
};

static const void *take(struct reader *r, uint64_t bytes)
{
    const void *at = r->at;

    if (bytes > r->left) {
        err_set(r->err, ERR_PEER, "%s: expected %" PRIu64 " more bytes, found %zu", r->kind, bytes,
                r->left);
        return NULL;
    }
    r->at += bytes;
    r->left -= (size_t)bytes;
    return at;
}

static int read_hyper(struct reader *r, struct optim_hyper *out)
{
    const struct hyper *h = take(r, sizeof(*h));

    if (h == NULL)
        return ERR_PEER;
    if (h->nesterov > 1 || h->centered > 1 || h->zero != 0 || h->zero2 != 0)
        return err_set(r->err, ERR_PEER, "%s: a flag of the optimizer is not 0 or 1", r->kind);
    *out = (struct optim_hyper){ .learning_rate = h->learning_rate,
                                 .momentum = h->momentum,
                                 .beta1 = h->beta1,
                                 .beta2 = h->beta2,
                                 .epsilon = h->epsilon,
                                 .weight_decay = h->weight_decay,
                                 .trust_coefficient = h->trust_coefficient,
                                 .nesterov = h->nesterov == 1,
                                 .centered = h->centered == 1,
                                 .step = h->step,
                                 .grad_scale = h->grad_scale };
    return 0;
}

static int read_section_heads(struct reader *r, uint32_t n_widths, struct ps_message *m)
{
    for (uint32_t i = 0; i < m->n_sections; i++) {
        struct ps_section *s = &m->sections[i];
        const uint8_t *head = take(r, SECTION_BYTES);

        if (head == NULL)
            return ERR_PEER;
        *s = (struct ps_section){ 0 };
        memcpy(&s->table, head, sizeof(s->table));
        memcpy(&s->part, head + 4, sizeof(s->part));
        memcpy(&s->n, head + 8, sizeof(s->n));
        if (s->table >= n_widths)
            return err_set(r->err, ERR_PEER, "%s: table %u, expected 0 to %u", r->kind, s->table,
                           n_widths - 1);
        if (s->n > SIZE_MAX / 8 / PS_PARTS_MAX / PS_WIDTH_MAX)
            return err_set(r->err, ERR_PEER, "%s: %" PRIu64 " rows are too many", r->kind, s->n);
    }
    return 0;
}

/* The only section of COPY_IDS. */
static int read_ids(struct reader *r, const uint32_t *widths, struct ps_message *m)
{
    struct ps_section *s = &m->sections[0];

    if (s->part == 0 || s->part > PS_PARTS_MAX)
        return err_set(r->err, ERR_PEER, "%s: %u parts of the state, expected 1 to %d", r->kind,
                       s->part, PS_PARTS_MAX);
    s->rows = take(r, s->n * sizeof(*s->rows));
    m->last_steps = s->rows != NULL ? take(r, s->n * sizeof(*m->last_steps)) : NULL;
    m->counts = m->last_steps != NULL ? take(r, s->n * sizeof(*m->counts)) : NULL;
    s->values = m->counts != NULL ? take(r, ps_padded(s->n * s->part * widths[s->table])) : NULL;
    return s->values != NULL ? 0 : ERR_PEER;
}

static int read_sections(struct reader *r, const uint32_t *widths, uint32_t n_widths,
                         struct ps_message *m)
{
    int rc = read_section_heads(r, n_widths, m);

    for (uint32_t i = 0; rc == 0 && i < m->n_sections; i++) {
        struct ps_section *s = &m->sections[i];

        if (m->kind == PS_COPY_IDS) {
            rc = read_ids(r, widths, m);
            continue;
        }
        if (message_kinds[m->kind].has_rows) {
            s->rows = take(r, s->n * sizeof(*s->rows));
            rc = s->rows == NULL ? ERR_PEER : 0;
        }
        if (rc == 0 && message_kinds[m->kind].has_values) {
            s->values = take(r, ps_padded(s->n * widths[s->table]));
            rc = s->values == NULL ? ERR_PEER : 0;
        }
    }
    return rc;
}

static int read_names(struct reader *r, struct ps_message *m)
{
    const uint64_t *n = take(r, sizeof(*n));
    uint32_t ends = 0;
    uint64_t i = 0;

    if (n == NULL)
        return ERR_PEER;
    if (*n > r->left || *n % 8 != 0)
        return err_set(r->err, ERR_PEER, "SETUP: names of %" PRIu64 " bytes, found %zu", *n,
                       r->left);
    m->names = take(r, *n);
    for (; i < *n && ends < m->n_tables; i++)
        ends += m->names[i] == '\0';
    while (i % 8 != 0 && i < *n && m->names[i] == '\0') /* padding */
        i++;
    return ends == m->n_tables && i == *n
               ? 0
               : err_set(r->err, ERR_PEER, "SETUP: %u names for %u tables", ends, m->n_tables);
}

/* A table of fixed size has no rules; a dynamic one has valid rules, and generated rows. */
static bool is_valid_size(const struct ps_setup_table *t)
{
    if (t->rows > 0)
        return t->admit_after == 0 && t->sweep_steps == 0 && t->expire_steps == 0 &&
               t->max_rows == 0;
    return (t->flags & PS_TABLE_DENSE) == 0 && t->admit_after > 0 && t->sweep_steps > 0 &&
           t->fill != TABLE_FROM_FILE && (t->max_rows == 0 || t->max_rows >= PS_SHARDS);
}

static int read_setup(struct reader *r, struct ps_message *m)
{
    const uint32_t *counts = take(r, SETUP_COUNTS * sizeof(*counts));
    const double *average = counts != NULL ? take(r, sizeof(*average)) : NULL;

    if (average == NULL)
        return ERR_PEER;
    m->optimizer = counts[0];
    m->n_tables = counts[1];
    m->n_lanes = counts[2];
    m->bound = counts[3];
    m->average = *average;
    if (m->n_lanes > PS_MAX_LEAVES || m->bound > PS_BOUND_MAX ||
        (m->n_lanes > 0) != (m->bound > 0) || (m->bound > 0 && m->flag > 0))
        return err_set(r->err, ERR_PEER, "SETUP: %u lanes, bound %u, staleness %u: out of range",
                       m->n_lanes, m->bound, m->flag);
    if (m->optimizer >= OPTIM_TYPES || m->n_tables == 0 || m->n_tables > PS_TABLES_MAX ||
        !(m->average >= 0 && m->average < 1) || m->flag > PS_STALENESS_MAX)
        return err_set(r->err, ERR_PEER,
                       "SETUP: optimizer %u, %u tables, average %g, staleness %u: out of range",
                       m->optimizer, m->n_tables, m->average, m->flag);
    m->tables = take(r, m->n_tables * sizeof(*m->tables));
    for (uint32_t i = 0; m->tables != NULL && i < m->n_tables; i++) {
        const struct ps_setup_table *t = &m->tables[i];

        if (t->width == 0 || t->width > PS_WIDTH_MAX || !is_valid_size(t) ||
            t->rows > (uint64_t)1 << 40 || t->flags > (PS_TABLE_LAZY | PS_TABLE_DENSE) ||
            ((t->flags & PS_TABLE_DENSE) != 0 && t->width != PS_DENSE_WIDTH) ||
            !isfinite(t->rate_factor) || !isfinite(t->weight_decay) || t->fill > TABLE_NORMAL ||
            !isfinite(t->scale))
            return err_set(r->err, ERR_PEER,
                           "SETUP: table %u: %" PRIu64 " rows of %u: out of range", i, t->rows,
                           t->width);
    }
    return m->tables != NULL ? read_names(r, m) : ERR_PEER;
}

/* Places, the length of the text with its NUL and padding, the text. */
static int read_save(struct reader *r, struct ps_message *m)
{
    const uint64_t *n;
    size_t len;

    m->places = take(r, PS_PLACES * sizeof(*m->places));
    n = m->places != NULL ? take(r, sizeof(*n)) : NULL;
    if (n == NULL)
        return ERR_PEER;
    if (*n == 0 || *n > PS_TEXT_MAX || *n % 8 != 0)
        return err_set(r->err, ERR_PEER, "%s: text of %" PRIu64 " bytes, expected 8 to %d", r->kind,
                       *n, PS_TEXT_MAX);
    m->text = take(r, *n);
    if (m->text == NULL)
        return ERR_PEER;
    len = strnlen(m->text, *n);
    for (uint64_t i = len; i < *n; i++)
        if (m->text[i] != '\0')
            return err_set(r->err, ERR_PEER, "%s: bytes after the end of the text", r->kind);
    return (len + 8) / 8 * 8 == *n
               ? 0
               : err_set(r->err, ERR_PEER, "%s: a text of %zu bytes in %" PRIu64, r->kind, len, *n);
}

static int read_sizes(struct reader *r, struct ps_message *m)
{
    if (m->number > PS_TABLES_MAX)
        return err_set(r->err, ERR_PEER, "%s: sizes of %u tables, expected at most %d", r->kind,
                       m->number, PS_TABLES_MAX);
    m->sizes = take(r, m->number * sizeof(*m->sizes));
    return m->sizes != NULL ? 0 : ERR_PEER;
}

static int read_units(struct reader *r, struct ps_message *m)
{
    const uint64_t *n;

    m->history = take(r, 2 * sizeof(*m->history));
    n = m->history != NULL ? take(r, sizeof(*n)) : NULL;
    if (n == NULL)
        return ERR_PEER;
    if (*n % 8 != 0)
        return err_set(r->err, ERR_PEER, "%s: a ledger of %" PRIu64 " bytes", r->kind, *n);
    m->ledger = take(r, *n);
    m->ledger_bytes = (size_t)*n;
    return m->ledger != NULL ? 0 : ERR_PEER;
}

static int read_held(struct reader *r, struct ps_message *m)
{
    int rc = read_units(r, m);

    if (rc < 0)
        return rc;
    m->bytes = take(r, PS_SHARDS * sizeof(*m->bytes));
    return m->bytes != NULL ? 0 : ERR_PEER;
}

static int read_go(struct reader *r, struct ps_message *m)
{
    const uint32_t *counts = take(r, 2 * sizeof(*counts));

    if (counts == NULL)
        return ERR_PEER;
    m->n_lanes = counts[0];
    m->n_facts = counts[1];
    if (m->n_facts > PS_FACTS_MAX)
        return err_set(r->err, ERR_PEER, "GO: facts of %u steps, expected at most %d", m->n_facts,
                       PS_FACTS_MAX);
    m->facts = take(r, m->n_facts * sizeof(*m->facts));
    return m->facts != NULL ? 0 : ERR_PEER;
}

static int read_vote(struct reader *r, struct ps_message *m)
{
    m->checksums = take(r, PS_SHARDS * sizeof(*m->checksums));
    m->squares = m->checksums != NULL ? take(r, PS_SHARDS * sizeof(*m->squares)) : NULL;
    m->states = m->squares != NULL ? take(r, PS_CHECK_SHARDS * sizeof(*m->states)) : NULL;
    return m->states != NULL ? 0 : ERR_PEER;
}

static int read_save_sizes(struct reader *r, struct ps_message *m)
{
    int rc = read_save(r, m);

    return rc == 0 ? read_sizes(r, m) : rc;
}

/* What follows the sets; NULL: nothing. */
static int (*const read_rest[PS_KINDS])(struct reader *r, struct ps_message *m) = {
    [PS_SETUP] = read_setup, [PS_HELD] = read_held,  [PS_BEGIN] = read_units,
    [PS_SAVE] = read_save_sizes, [PS_LOAD] = read_save,   [PS_DONE] = read_save,
    [PS_COUNTS] = read_sizes, [PS_VOTE] = read_vote,  [PS_GO] = read_go,
};

static int read_arrays(struct reader *r, struct ps_message *m)
{
    const uint64_t **sets[] = { &m->shards, &m->copied, &m->followed };

    for (uint32_t i = 0; i < message_kinds[m->kind].n_sets; i++) {
        *sets[i] = take(r, PS_SET_WORDS * sizeof(**sets[i]));
        if (*sets[i] == NULL)
            return ERR_PEER;
    }
    return read_rest[m->kind] != NULL ? read_rest[m->kind](r, m) : 0;
}

static int read_head(struct reader *r, struct ps_message *m)
{
    const struct head *h = take(r, sizeof(*h));

    if (h == NULL)
        return ERR_PEER;
    if (h->magic != PS_MESSAGE_MAGIC || h->kind == 0 || h->kind >= PS_KINDS)
        return err_set(r->err, ERR_PEER,
                       "a message begins with %08x, kind %u: it is not one of this release",
                       h->magic, h->kind);
    *m = (struct ps_message){ .kind = h->kind,
                              .step = h->step,
                              .first = h->first,
                              .flag = h->flag,
                              .number = h->number,
                              .clip = h->clip,
                              .n_sections = h->n_sections,
                              .sections = m->sections };
    r->kind = message_kinds[m->kind].name;
    if (m->kind == PS_COPY_IDS && m->n_sections != 1)
        return err_set(r->err, ERR_PEER, "%s: %u sections, expected 1", r->kind, m->n_sections);
    if (m->n_sections > (message_kinds[m->kind].has_sections ? PS_TABLES_MAX : 0))
        return err_set(r->err, ERR_PEER, "%s: %u sections, expected at most %d", r->kind,
                       m->n_sections, message_kinds[m->kind].has_sections ? PS_TABLES_MAX : 0);
    return 0;
}

int ps_message_read(const uint8_t *data, size_t n, const uint32_t *widths, uint32_t n_widths,
                    struct ps_section *sections, struct ps_message *out, struct err *err)
{
    struct reader r = { .at = data, .left = n, .kind = "a message", .err = err };
    int rc;

    CHECK((uintptr_t)data % 8 == 0);
    out->sections = sections;
    rc = read_head(&r, out);
    if (rc == 0 && message_kinds[out->kind].has_hyper)
        rc = read_hyper(&r, &out->hyper);
    if (rc == 0)
        rc = read_sections(&r, widths, n_widths, out);
    if (rc == 0)
        rc = read_arrays(&r, out);
    if (rc == 0 && r.left > 0)
        rc = err_set(err, ERR_PEER, "%s: %zu bytes after its end", r.kind, r.left);
    return rc;
}
