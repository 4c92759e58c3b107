/* reader.c - prefetches lane batches into a ring of slots.
 *
 * Batch q of the stream (from 0) is stored in slot q mod n_slots. Two counters advance:
 *
 *     delivered the batch that the consumer uses or waits for; earlier batches are released
 *     claimed   the batch whose pieces the decode threads claim; below delivered + n_slots
 *
 * A piece is a range of samples of a batch, so that all threads work on one batch and the first
 * batch is ready soon. A batch is ready when its last piece is decoded. Batches and errors are
 * delivered in order. Without decode threads the consumer decodes the batch itself. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/thread.h"
#include "data/data_priv.h"
#include "data/order.h"

enum { PIECE_MIN = 8, ALIGNMENT = 64, GAP_BYTES = 8 << 10, PREFETCH_DISTANCE = 4 };

struct slot {
    struct data_batch batch;    /* its pointers point into `memory` */
    void **features;            /* [n_features] */
    float *weights;             /* [lane batch] */
    uint64_t *samples, *epochs; /* [lane batch] */
    uint64_t *used; /* [lane batch] samples decoded; differ where bad ones were skipped */
    uint32_t *sorted;           /* [lane batch] samples of each piece, in file order */
    uint8_t *memory;            /* owned; contains all arrays above */
    uint32_t n_undecoded;            /* samples that are not decoded yet, claimed or not */
    int rc;                     /* 0, or the error of the first bad sample */
    uint32_t bad_sample;               /* index of that sample */
    struct err err;             /* its error */
};

struct data_reader {
    struct data_set *s;
    struct data_order order;
    struct data_reader_opts opts;
    uint32_t lane_batch;
    uint32_t piece;     /* samples per piece */
    uint64_t n_batches; /* batches of the whole stream */
    uint64_t wait_ns;
    bool held;          /* the consumer has not released batch `delivered` */
    struct slot *slots; /* owned */
    uint32_t n_slots;
    pthread_t *threads;             /* owned */
    uint32_t n_threads;             /* started threads */
    struct data_decoder **decoders; /* owned */
    uint32_t n_decoders;            /* one per thread; without threads one for the consumer */
    atomic_bool canceled;

    pthread_mutex_t lock; /* guards the fields below, and n_undecoded, rc, bad_sample and err of
                             claimed slots */
    pthread_cond_t work, ready;
    uint64_t delivered;  /* batch that the consumer uses or waits for */
    uint64_t claimed;    /* batch whose pieces are claimed */
    uint32_t claimed_at; /* its first sample that is not claimed */
    uint32_t n_decoding; /* decoders assigned to threads */
};

struct piece {
    struct slot *slot;
    uint64_t step;
    uint32_t lane;
    uint32_t begin, end; /* samples [begin, end) of the batch */
    bool has_check;      /* the batch has a check, which is made with this piece */
};

/* ---- slots ---- */

static bool add(size_t *total, size_t n, size_t size)
{
    size_t bytes;

    return !__builtin_mul_overflow(n, size, &bytes) &&
           !__builtin_add_overflow(bytes, ALIGNMENT - 1, &bytes) &&
           !__builtin_add_overflow(*total, bytes & ~(size_t)(ALIGNMENT - 1), total);
}

/* Allocates one block per slot: features, aligned for vector loads, weights, numbers, pointers. */
static int slot_init(struct slot *slot, const struct data_set *s, uint32_t lane_batch,
                     struct err *err)
{
    size_t n = s->n_features, total = 0, weights, samples, epochs, used, sorted, pointers;
    bool fits = true;

    for (uint32_t i = 0; i < n; i++)
        fits = fits && add(&total, lane_batch, s->layout.fed_bytes[i]);
    weights = total;
    fits = fits && add(&total, lane_batch, sizeof(*slot->weights));
    samples = total;
    fits = fits && add(&total, lane_batch, sizeof(*slot->samples));
    epochs = total;
    fits = fits && add(&total, lane_batch, sizeof(*slot->epochs));
    used = total;
    fits = fits && add(&total, lane_batch, sizeof(*slot->used));
    sorted = total;
    fits = fits && add(&total, lane_batch, sizeof(*slot->sorted));
    pointers = total;
    fits = fits && add(&total, n, sizeof(*slot->features));
    slot->memory = fits ? aligned_alloc(ALIGNMENT, total) : NULL;
    if (slot->memory == NULL)
        return err_set(err, ERR_NOMEM, "batch of %" PRIu32 " samples: out of memory", lane_batch);
    slot->weights = (float *)(void *)(slot->memory + weights);
    slot->samples = (uint64_t *)(void *)(slot->memory + samples);
    slot->epochs = (uint64_t *)(void *)(slot->memory + epochs);
    slot->used = (uint64_t *)(void *)(slot->memory + used);
    slot->sorted = (uint32_t *)(void *)(slot->memory + sorted);
    slot->features = (void **)(void *)(slot->memory + pointers);
    total = 0;
    for (uint32_t i = 0; i < n; i++) {
        slot->features[i] = slot->memory + total;
        (void)add(&total, lane_batch, s->layout.fed_bytes[i]); /* succeeded above */
    }
    slot->batch.features = (const void *const *)slot->features;
    slot->batch.weights = slot->weights;
    slot->batch.samples = slot->samples;
    return 0;
}

static int make_slots(struct data_reader *r, uint32_t n_decoders, struct err *err)
{
    int rc = 0;

    r->slots = calloc(r->n_slots, sizeof(*r->slots));
    r->decoders = calloc(n_decoders, sizeof(*r->decoders));
    r->threads = calloc(n_decoders, sizeof(*r->threads));
    if (r->slots == NULL || r->decoders == NULL || r->threads == NULL)
        return err_set(err, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; rc == 0 && i < r->n_slots; i++)
        rc = slot_init(&r->slots[i], r->s, r->lane_batch, err);
    while (rc == 0 && r->n_decoders < n_decoders) {
        rc = data_decoder_new(r->s, &r->decoders[r->n_decoders], err);
        if (rc == 0)
            r->decoders[r->n_decoders++]->retry.canceled = &r->canceled;
    }
    return rc;
}

/* ---- decoding ---- */

/* Sorts the samples of a piece by number, so that the file is read forward and adjacent records in
 * one read. Shell sort: pieces are small, and it needs no memory. */
static void sort_piece(struct slot *slot, const struct piece *p)
{
    uint32_t *sorted = slot->sorted + p->begin, n = p->end - p->begin, gap = 1;
    bool is_sorted = true;

    for (uint32_t i = 0; i < n; i++) {
        sorted[i] = p->begin + i;
        is_sorted =
            is_sorted && (i == 0 || slot->samples[p->begin + i - 1] <= slot->samples[p->begin + i]);
    }
    if (is_sorted) /* without shuffling */
        return;
    while (gap < n / 3)
        gap = 3 * gap + 1;
    for (; gap > 0; gap /= 3)
        for (uint32_t i = gap; i < n; i++) {
            uint32_t x = sorted[i], k = i;

            for (; k >= gap && slot->samples[sorted[k - gap]] > slot->samples[x]; k -= gap)
                sorted[k] = sorted[k - gap];
            sorted[k] = x;
        }
}

/* Returns the last sample that should be read together with the k-th sorted sample: the following
 * samples in the same file without a gap above GAP_BYTES. Packs are not read together. */
static uint64_t run_end(const struct data_reader *r, const struct slot *slot, const struct piece *p,
                        uint32_t k)
{
    const struct data_set *s = r->s;
    uint64_t last = slot->samples[slot->sorted[k]], from, to, end;
    const struct data_file *f;

    if (s->packs != NULL)
        return last;
    if (s->cache.samples != NULL && k + 1 < p->end && slot->samples[slot->sorted[k + 1]] > last + 1)
        return last; /* the next sample is not adjacent and may be cached */
    f = &s->files[data_file_of(s, last)];
    data_record_range(f, last - f->first, &from, &end);
    while (++k < p->end) {
        uint64_t next = slot->samples[slot->sorted[k]];

        if (next >= f->first + f->n_records)
            break;
        data_record_range(f, next - f->first, &from, &to);
        if (from > end + GAP_BYTES)
            break;
        last = next;
        end = to;
    }
    return last;
}

/* Decodes a piece. On an error, *bad_sample is the first bad sample. */
static int decode_piece(struct data_reader *r, struct data_decoder *d, const struct piece *p,
                        uint32_t *bad_sample, struct err *err)
{
    struct slot *slot = p->slot;
    uint64_t last = 0;
    bool is_first = true;
    int rc = 0;

    for (uint32_t i = p->begin; i < p->end; i++) {
        struct data_pick pick = data_order_pick(&r->order, p->step, p->lane, i);

        slot->samples[i] = pick.sample;
        slot->epochs[i] = pick.epoch;
        slot->weights[i] = pick.real ? 1.0f : 0.0f;
    }
    if (p->has_check) {
        struct err why;

        rc = data_check_record(d, p->step, r->opts.check_every, &slot->batch.check, &why);
        if (rc < 0) {
            *bad_sample = p->begin;
            *err = why;
        }
    }
    sort_piece(slot, p);
    for (uint32_t k = p->begin; k < p->end; k++) {
        uint32_t i = slot->sorted[k];
        struct data_sample_key draw = { r->opts.seed, slot->epochs[i], slot->samples[i] };
        struct err why;
        int now;

        if (k + PREFETCH_DISTANCE < p->end && r->s->cache.samples == NULL && r->s->packs == NULL)
            data_record_prefetch(r->s, slot->samples[slot->sorted[k + PREFETCH_DISTANCE]]);
        if (atomic_load_explicit(&r->canceled, memory_order_relaxed))
            return err_set(err, ERR_CANCELED, "reading was canceled");
        if (rc < 0 && i > *bad_sample)
            continue; /* only an error of an earlier sample would be reported */
        if (is_first || draw.sample > last)
            last = run_end(r, slot, p, k);
        is_first = false;
        now = data_decode(d, &draw, last, slot->features, i, &slot->used[i], &why);
        if (now < 0) {
            rc = now;
            *bad_sample = i;
            *err = why;
        }
    }
    for (uint32_t i = p->begin; i < p->end; i++)
        slot->samples[i] = slot->used[i];
    return rc;
}

/* Returns the number of the i-th lane of a step. */
static uint32_t lane_of(const struct data_reader_opts *o, uint32_t i)
{
    uint32_t n_first = o->n_lanes - o->n_second;

    return i < n_first ? o->first_lane + i : o->second_lane + (i - n_first);
}

/* Claims the next piece; false: no piece is available now. Caller holds the lock. */
static bool claim(struct data_reader *r, struct piece *p)
{
    uint32_t n_lanes = r->opts.n_lanes, left;
    uint64_t q = r->claimed;

    if (q >= r->n_batches || q - r->delivered >= r->n_slots)
        return false;
    p->slot = &r->slots[q % r->n_slots];
    p->step = r->opts.first_step + q / n_lanes;
    p->lane = lane_of(&r->opts, (uint32_t)(q % n_lanes));
    if (r->claimed_at == 0) { /* the first piece of a new batch */
        p->slot->n_undecoded = r->lane_batch;
        p->slot->rc = 0;
        p->slot->batch.step = p->step;
        p->slot->batch.lane = p->lane;
        p->slot->batch.check = 0;
    }
    p->has_check = r->claimed_at == 0 && q % n_lanes == 0 && r->opts.check_every > 0 &&
                   p->step % r->opts.check_every == 0;
    left = r->lane_batch - r->claimed_at;
    p->begin = r->claimed_at;
    p->end = p->begin + (left < r->piece ? left : r->piece);
    r->claimed_at = p->end;
    if (p->end == r->lane_batch) {
        r->claimed++;
        r->claimed_at = 0;
    }
    return true;
}

/* Records the result of a piece. Caller holds the lock. */
static void finish_piece(struct data_reader *r, const struct piece *p, int rc, uint32_t bad_sample,
                         const struct err *err)
{
    struct slot *slot = p->slot;

    if (rc < 0 && (slot->rc == 0 || bad_sample < slot->bad_sample)) {
        slot->rc = rc;
        slot->bad_sample = bad_sample;
        slot->err = *err;
    }
    slot->n_undecoded -= p->end - p->begin;
    if (slot->n_undecoded == 0)
        pthread_cond_signal(&r->ready);
}

static void *decode_thread(void *arg)
{
    struct data_reader *r = arg;
    struct data_decoder *d;
    struct piece p;
    struct err err;
    uint32_t bad_sample = 0;
    int rc;

    pthread_mutex_lock(&r->lock);
    d = r->decoders[r->n_decoding++];
    while (!atomic_load(&r->canceled)) {
        if (!claim(r, &p)) {
            pthread_cond_wait(&r->work, &r->lock);
            continue;
        }
        pthread_mutex_unlock(&r->lock);
        rc = decode_piece(r, d, &p, &bad_sample, &err);
        pthread_mutex_lock(&r->lock);
        finish_piece(r, &p, rc, bad_sample, &err);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* ---- the consumer ---- */

int data_reader_open(struct data_set *s, const struct data_reader_opts *opts,
                     struct data_reader **out, struct err *err)
{
    uint32_t n_decoders = opts->threads > 0 ? opts->threads : 1;
    pthread_condattr_t monotonic;
    struct data_reader *r;
    int rc;

    CHECK(opts->lanes > 0 && opts->global_batch > 0 && opts->global_batch % opts->lanes == 0);
    CHECK(opts->n_lanes > 0 && opts->n_lanes <= opts->lanes && opts->n_second < opts->n_lanes &&
          opts->first_lane <= opts->lanes - (opts->n_lanes - opts->n_second) &&
          opts->second_lane <= opts->lanes - opts->n_second);
    CHECK(opts->prefetch > 0 && opts->first_step > 0);
    CHECK(data_steps_per_epoch(s, opts->global_batch, opts->pad) > 0);
    r = calloc(1, sizeof(*r));
    if (r == NULL)
        return err_set(err, ERR_NOMEM, "data reader: out of memory");
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->work, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&r->ready, &monotonic);
    pthread_condattr_destroy(&monotonic);
    r->s = s;
    r->opts = *opts;
    r->order = (struct data_order){ .n = data_samples(s), .seed = opts->seed,
                                    .global_batch = opts->global_batch, .lanes = opts->lanes,
                                    .shuffle = opts->shuffle, .pad = opts->pad,
                                    .parts = s->parts, .n_parts = s->n_parts };
    r->lane_batch = opts->global_batch / opts->lanes;
    r->piece = (r->lane_batch - 1) / n_decoders + 1;
    if (r->piece < PIECE_MIN)
        r->piece = PIECE_MIN;
    if (opts->last_step < opts->first_step)
        r->n_batches = 0;
    else if (__builtin_mul_overflow(opts->last_step - opts->first_step + 1, (uint64_t)opts->n_lanes,
                                    &r->n_batches))
        r->n_batches = UINT64_MAX; /* such a stream does not end in practice either */
    /* One slot for the consumer's batch, the others for prefetched batches. */
    r->n_slots = opts->threads > 0 ? opts->prefetch + 1 : 1;
    rc = make_slots(r, n_decoders, err);
    while (rc == 0 && r->n_threads < opts->threads) {
        rc = thread_start(&r->threads[r->n_threads], "decodes samples", decode_thread, r, err);
        if (rc == 0)
            r->n_threads++;
    }
    if (rc < 0) {
        data_reader_close(r);
        return err_wrap(err, rc, "data reader");
    }
    *out = r;
    return 0;
}

/* Returns the path of a file that a decoder is reading, for a message; NULL: no read is active. */
static const char *file_being_read(const struct data_reader *r)
{
    for (uint32_t i = 0; i < r->n_decoders; i++) {
        uint32_t file = atomic_load(&r->decoders[i]->reading);

        if (file > 0)
            return r->s->files[file - 1].path;
    }
    return NULL;
}

/* Waits until the batch `delivered` is ready, the reader is cancelled, or the deadline passes.
 * Caller holds the lock. Sets *is_stuck on a timeout during a read. */
static int wait_ready(struct data_reader *r, const struct slot *slot, bool *is_stuck,
                      struct err *err)
{
    /* Longer than the read's own deadline, whose error contains the cause. */
    uint64_t before = clock_ns(), ms = r->opts.deadline_ms + r->opts.deadline_ms / 4;
    struct timespec until;
    const char *file;
    int late = 0;

    /* The batch is ready if it is completely claimed and all its samples are decoded. */
    if (r->claimed > r->delivered && slot->n_undecoded == 0)
        return 0;
    until = clock_after_ms(ms);
    while (late == 0 && !atomic_load(&r->canceled) &&
           !(r->claimed > r->delivered && slot->n_undecoded == 0))
        late = ms > 0 ? pthread_cond_timedwait(&r->ready, &r->lock, &until)
                      : pthread_cond_wait(&r->ready, &r->lock);
    r->wait_ns += clock_ns() - before;
    if (late == 0 || (r->claimed > r->delivered && slot->n_undecoded == 0))
        return 0;
    file = file_being_read(r);
    if (file == NULL)
        return err_set(err, ERR_IO, "no batch after %" PRIu64 " ms: decoding is too slow", ms);
    *is_stuck = true;
    return err_set(err, ERR_IO, "no batch after %" PRIu64 " ms: a read of '%s' does not return", ms,
                   file);
}

/* Decodes the batch on the calling thread. Caller holds the lock, which is released while
 * decoding. */
static void decode_on_caller(struct data_reader *r)
{
    uint64_t before = clock_ns();
    struct piece p;
    struct err err;
    uint32_t bad_sample = 0;
    int rc;

    while (claim(r, &p)) {
        pthread_mutex_unlock(&r->lock);
        rc = decode_piece(r, r->decoders[0], &p, &bad_sample, &err);
        pthread_mutex_lock(&r->lock);
        finish_piece(r, &p, rc, bad_sample, &err);
    }
    r->wait_ns += clock_ns() - before;
}

static uint32_t count_real(const struct data_reader *r, const struct slot *slot)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < r->lane_batch; i++)
        n += slot->weights[i] != 0;
    return n;
}

int data_next(struct data_reader *r, const struct data_batch **out, struct err *err)
{
    struct slot *slot = &r->slots[r->delivered % r->n_slots];
    bool canceled, is_stuck = false;
    struct err trouble;
    int rc = 0;

    CHECK(!r->held);
    if (r->delivered == r->n_batches) {
        *out = NULL;
        return 0;
    }
    pthread_mutex_lock(&r->lock);
    if (r->n_threads == 0)
        decode_on_caller(r);
    else
        rc = wait_ready(r, slot, &is_stuck, &trouble);
    canceled = atomic_load(&r->canceled);
    pthread_mutex_unlock(&r->lock);
    if (rc < 0 && err != NULL)
        *err = trouble;
    /* The report comes before the return, because data_reader_close() waits for the read. It is
     * made without the lock, because the callback may block or call data_reader_cancel(). */
    if (is_stuck && r->s->retry.on_warning != NULL)
        r->s->retry.on_warning(r->s->retry.arg, trouble.text);
    if (canceled)
        return err_set(err, ERR_CANCELED, "reading was canceled");
    if (rc < 0)
        return err_wrap(err, rc, "data of step %" PRIu64,
                        r->opts.first_step + r->delivered / r->opts.n_lanes);
    if (slot->rc < 0) { /* the next call fails again: the batch cannot be skipped */
        if (err != NULL)
            *err = slot->err;
        return err_wrap(err, slot->rc, "data of step %" PRIu64 ", lane %" PRIu32, slot->batch.step,
                        slot->batch.lane);
    }
    slot->batch.n_real = count_real(r, slot);
    r->held = true;
    *out = &slot->batch;
    return 0;
}

bool data_is_ready(struct data_reader *r)
{
    bool ready;

    pthread_mutex_lock(&r->lock);
    ready = r->n_threads == 0 || r->delivered == r->n_batches || atomic_load(&r->canceled) ||
            (r->claimed > r->delivered && r->slots[r->delivered % r->n_slots].n_undecoded == 0);
    pthread_mutex_unlock(&r->lock);
    return ready;
}

void data_release(struct data_reader *r)
{
    CHECK(r->held);
    r->held = false;
    pthread_mutex_lock(&r->lock);
    r->delivered++;
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->lock);
}

void data_reader_cancel(struct data_reader *r)
{
    pthread_mutex_lock(&r->lock);
    atomic_store(&r->canceled, true);
    pthread_cond_broadcast(&r->work);
    pthread_cond_broadcast(&r->ready);
    pthread_mutex_unlock(&r->lock);
}

void data_reader_close(struct data_reader *r)
{
    if (r == NULL)
        return;
    data_reader_cancel(r);
    for (uint32_t i = 0; i < r->n_threads; i++)
        pthread_join(r->threads[i], NULL);
    for (uint32_t i = 0; r->slots != NULL && i < r->n_slots; i++)
        free(r->slots[i].memory);
    for (uint32_t i = 0; i < r->n_decoders; i++)
        data_decoder_free(r->decoders[i]);
    free(r->slots);
    free(r->threads);
    free(r->decoders);
    pthread_cond_destroy(&r->ready);
    pthread_cond_destroy(&r->work);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

uint64_t data_wait_ns(const struct data_reader *r)
{
    return r->wait_ns;
}
