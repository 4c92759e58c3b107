/* message_write.c - writes messages; see message.h. */
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "base/check.h"
#include "base/err.h"
#include "ckpt/shard_files.h"
#include "ps/message_priv.h"
#include "ps/store.h"
#include "ps/units.h"

void ps_writer_fini(struct ps_writer *w)
{
    free(w->data);
    free(w->parts);
    free(w->runs);
    *w = (struct ps_writer){ 0 };
}

/* Returns the array with room for n elements; NULL, with the array unchanged: out of memory. */
static void *make_array(void *old, uint32_t *room, uint32_t n, size_t bytes)
{
    uint32_t more = n + n / 2 + 16;
    void *grown;

    if (n <= *room)
        return old;
    grown = realloc(old, more * bytes);
    if (grown != NULL)
        *room = more;
    return grown;
}

static void add_part(struct ps_writer *w, const void *data, size_t n)
{
    struct iovec *grown = make_array(w->parts, &w->room_parts, w->n_parts + 1, sizeof(*grown));

    w->failed = w->failed || grown == NULL;
    if (w->failed)
        return;
    w->parts = grown;
    w->parts[w->n_parts++] = (struct iovec){ (void *)(uintptr_t)data, n };
}

/* Makes a part of the bytes that were added to `data`. They may move, so their place is set later. */
static void list_added(struct ps_writer *w)
{
    struct ps_run *grown = make_array(w->runs, &w->room_runs, w->n_runs + 1, sizeof(*grown));

    w->failed = w->failed || grown == NULL;
    if (w->failed)
        return;
    w->runs = grown;
    w->runs[w->n_runs++] = (struct ps_run){ w->n_parts, w->listed };
    add_part(w, NULL, w->n - w->listed);
    w->listed = w->n;
}

static bool is_borrowed(const struct ps_writer *w, uint32_t part)
{
    return w->n_runs == 0 || w->runs[w->n_runs - 1].part < part;
}

void ps_write_borrow(struct ps_writer *w, const void *data, size_t n)
{
    struct iovec *last;

    if (w->n > w->listed && !w->failed)
        list_added(w);
    last = w->n_parts > 0 && is_borrowed(w, w->n_parts - 1) ? &w->parts[w->n_parts - 1] : NULL;
    if (last != NULL && (const uint8_t *)last->iov_base + last->iov_len == data)
        last->iov_len += n;
    else
        add_part(w, data, n);
    w->borrowed += n;
}

void ps_write_padding(struct ps_writer *w, uint64_t n_floats)
{
    static const float zero = 0;

    if (n_floats % 2 != 0)
        ps_write_borrow(w, &zero, sizeof(zero));
}

const struct iovec *ps_writer_parts(struct ps_writer *w, uint32_t *n)
{
    if (w->n > w->listed && !w->failed)
        list_added(w);
    if (w->failed)
        return NULL;
    for (uint32_t i = 0; i < w->n_runs; i++)
        w->parts[w->runs[i].part].iov_base = w->data + w->runs[i].at;
    *n = w->n_parts;
    return w->parts;
}

uint64_t ps_writer_bytes(const struct ps_writer *w)
{
    return w->n + w->borrowed;
}

void *ps_write_room(struct ps_writer *w, size_t n)
{
    uint8_t *grown;
    void *at;

    CHECK(n % 8 == 0);
    if (w->failed)
        return NULL;
    if (n > w->room - w->n) {
        size_t room = w->room < 4096 ? 4096 : 2 * w->room;

        while (room - w->n < n)
            room *= 2;
        grown = realloc(w->data, room);
        if (grown == NULL) {
            w->failed = true;
            return NULL;
        }
        w->data = grown;
        w->room = room;
    }
    at = w->data + w->n;
    w->n += n;
    return at;
}

void ps_write_begin(struct ps_writer *w, const struct ps_message *m, uint32_t n_sections)
{
    struct head *head;
    struct hyper *hyper;
    void *sections;

    w->n = w->listed = w->borrowed = 0;
    w->n_parts = w->n_runs = 0;
    w->failed = false;
    head = ps_write_room(w, sizeof(*head));
    if (head == NULL)
        return;
    *head = (struct head){ .magic = PS_MESSAGE_MAGIC,
                           .kind = m->kind,
                           .step = m->step,
                           .flag = m->flag,
                           .number = m->number,
                           .first = m->first,
                           .clip = m->clip,
                           .n_sections = n_sections };
    if (message_kinds[m->kind].has_hyper && (hyper = ps_write_room(w, sizeof(*hyper))) != NULL)
        *hyper = (struct hyper){ .learning_rate = m->hyper.learning_rate,
                                 .momentum = m->hyper.momentum,
                                 .beta1 = m->hyper.beta1,
                                 .beta2 = m->hyper.beta2,
                                 .epsilon = m->hyper.epsilon,
                                 .weight_decay = m->hyper.weight_decay,
                                 .trust_coefficient = m->hyper.trust_coefficient,
                                 .nesterov = m->hyper.nesterov,
                                 .centered = m->hyper.centered,
                                 .step = m->hyper.step,
                                 .grad_scale = m->hyper.grad_scale };
    sections = ps_write_room(w, (size_t)n_sections * SECTION_BYTES);
    if (sections != NULL)
        memset(sections, 0, (size_t)n_sections * SECTION_BYTES);
}

void ps_write_flag(struct ps_writer *w, uint32_t flag)
{
    if (!w->failed)
        ((struct head *)(void *)w->data)->flag |= flag;
}

void ps_write_section(struct ps_writer *w, uint32_t i, uint32_t table, uint32_t part, uint64_t n)
{
    uint8_t *at;

    if (w->failed)
        return;
    at = w->data + HEAD_BYTES + (size_t)i * SECTION_BYTES;
    memcpy(at, &table, sizeof(table));
    memcpy(at + 4, &part, sizeof(part));
    memcpy(at + 8, &n, sizeof(n));
}

uint64_t ps_written_rows(const struct ps_writer *w, uint32_t i)
{
    uint64_t n;

    memcpy(&n, w->data + HEAD_BYTES + (size_t)i * SECTION_BYTES + 8, sizeof(n));
    return n;
}

void ps_write_set(struct ps_writer *w, const uint64_t set[PS_SET_WORDS])
{
    void *at = ps_write_room(w, PS_SET_WORDS * sizeof(*set));

    if (at != NULL)
        memcpy(at, set, PS_SET_WORDS * sizeof(*set));
}

void ps_write_setup(struct ps_writer *w, const struct ps_message *m, const char *const *names)
{
    uint32_t counts[SETUP_COUNTS] = { m->optimizer, m->n_tables, m->n_lanes, m->bound };
    uint64_t bytes = 0, padded;
    uint8_t *at =
        ps_write_room(w, sizeof(counts) + sizeof(m->average) + m->n_tables * sizeof(*m->tables));

    if (at == NULL)
        return;
    memcpy(at, counts, sizeof(counts));
    memcpy(at + sizeof(counts), &m->average, sizeof(m->average));
    memcpy(at + sizeof(counts) + sizeof(m->average), m->tables, m->n_tables * sizeof(*m->tables));
    for (uint32_t i = 0; i < m->n_tables; i++)
        bytes += strlen(names[i]) + 1;
    padded = (bytes + 7) / 8 * 8;
    at = ps_write_room(w, sizeof(padded) + padded);
    if (at == NULL)
        return;
    memset(at, 0, sizeof(padded) + padded);
    memcpy(at, &padded, sizeof(padded));
    at += sizeof(padded);
    for (uint32_t i = 0; i < m->n_tables; i++) {
        memcpy(at, names[i], strlen(names[i]) + 1);
        at += strlen(names[i]) + 1;
    }
}

void ps_write_units(struct ps_writer *w, const uint64_t history[2], const struct ps_units *u)
{
    uint64_t head[3] = { history[0], history[1], ps_units_bytes(u) };
    uint8_t *at = ps_write_room(w, sizeof(head) + ps_units_bytes(u));

    if (at == NULL)
        return;
    memcpy(at, head, sizeof(head));
    ps_units_write(u, at + sizeof(head));
}

void ps_write_go(struct ps_writer *w, uint32_t n_lanes, const struct ps_step_facts *facts,
                 uint32_t n)
{
    uint32_t counts[2] = { n_lanes, n };
    uint8_t *at = ps_write_room(w, sizeof(counts) + n * sizeof(*facts));

    if (at == NULL)
        return;
    memcpy(at, counts, sizeof(counts));
    memcpy(at + sizeof(counts), facts, n * sizeof(*facts));
}

void ps_write_save(struct ps_writer *w, const uint64_t *places, const char *text)
{
    size_t n = strlen(text);
    uint64_t padded;
    uint8_t *at;

    n = n < PS_TEXT_MAX - 1 ? n : PS_TEXT_MAX - 1;
    padded = (n + 8) / 8 * 8;
    at = ps_write_room(w, PS_PLACES * sizeof(*places) + sizeof(padded) + padded);
    if (at == NULL)
        return;
    memcpy(at, places, PS_PLACES * sizeof(*places));
    at += PS_PLACES * sizeof(*places);
    memcpy(at, &padded, sizeof(padded));
    at += sizeof(padded);
    memset(at, 0, padded);
    memcpy(at, text, n);
}

void ps_write_sizes(struct ps_writer *w, const struct ckpt_sizes *sizes, uint32_t n)
{
    void *at = ps_write_room(w, n * sizeof(*sizes));

    if (at != NULL && n > 0)
        memcpy(at, sizes, n * sizeof(*sizes));
}

int ps_write_copy(struct ps_writer *w, uint64_t step, uint32_t shard, unsigned flags,
                  uint32_t table, uint32_t part, uint64_t first, uint64_t n, uint32_t width,
                  float **values)
{
    struct ps_message m = {
        .kind = PS_COPY, .step = step, .number = shard, .flag = flags, .first = first
    };

    ps_write_begin(w, &m, 1);
    *values = ps_write_room(w, ps_padded(n * width));
    ps_write_section(w, 0, table, part, n);
    if (w->failed)
        return ERR_NOMEM;
    if (n * width % 2 != 0)
        (*values)[n * width] = 0;
    return 0;
}

int ps_write_copy_ids(struct ps_writer *w, const struct ps_message *m, uint32_t table,
                      uint32_t n_parts, uint64_t n, uint32_t width, struct ps_ids_room *out)
{
    size_t floats = n * n_parts * width;

    ps_write_begin(w, m, 1);
    out->most = n;
    out->rows = ps_write_room(w, 3 * n * sizeof(*out->rows) + ps_padded(floats));
    ps_write_section(w, 0, table, n_parts, n);
    if (w->failed)
        return ERR_NOMEM;
    out->last_steps = out->rows + n;
    out->counts = out->last_steps + n;
    out->values = (float *)(out->counts + n);
    if (floats % 2 != 0)
        out->values[floats] = 0;
    return 0;
}
