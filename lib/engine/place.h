/* place.h - where one thread of this task is: its phase, since when, and for whom it waits.
 *
 * A thread writes only its own place. Any thread may read it without a lock (place_read() repeats
 * when the writer interfered). A watchdog compares places (train/progress.c).
 *
 * A thread that waits for peers repeats that statement at least every tenth of a second. When the
 * statement stops, place_read() reports the thread as working: it hangs. A thread that waits for
 * another thread of this task does not count; the other thread does. */
#ifndef ENGINE_PLACE_H
#define ENGINE_PLACE_H

#include <stdbool.h>
#include <stdint.h>

struct gate;

enum phase { /* of a generation, in no particular order; progress.c has the order and the names */
             PHASE_REST,
             PHASE_START, /* another replica connects */
             PHASE_LOAD,
             PHASE_CONNECT,
             PHASE_NCCL,
             PHASE_AGREE,
             PHASE_TRANSFER,
             PHASE_BETWEEN, /* between two steps: the callbacks of events */
             PHASE_BEGIN,
             PHASE_DATA,
             PHASE_LANE,
             PHASE_PERMISSION,
             PHASE_WRITER,
             PHASE_REDUCE,
             PHASE_COPY,
             PHASE_CHECK,
             PHASE_LOCATE,
             PHASE_UPDATE,
             PHASE_EVALUATION_DATA,
             PHASE_EVALUATE,
             PHASE_EVALUATION_SUMS,
             PHASE_SAVE,
             PHASE_EXPORT,
             N_PHASES,
};

enum place_wait {
    PLACE_WORKS,
    PLACE_WAITS_PEERS, /* inside a call of comm or NCCL; stated again and again */
    PLACE_WAITS_LOCAL, /* for another thread of this task, which counts instead */
};

/* Written by one thread, read by any: every field is atomic. */
struct place {
    _Atomic uint64_t version; /* odd: a write is in progress */
    _Atomic uint64_t step, since_ns;
    _Atomic uint64_t stated_ns; /* when the thread last stated its wait */
    _Atomic uint64_t worked_ns; /* the longest time of work in this phase before the present one */
    _Atomic uint32_t phase, bucket, wait;
    _Atomic uint64_t longest_ns[N_PHASES]; /* of this generation; older values fade */
    _Atomic uint32_t seen[N_PHASES];       /* in this generation */
};

/* ---- the thread that owns the place ---- */
/* Begins a generation; before the thread starts, or by it. */
void place_start(struct place *p, uint64_t step, enum place_wait wait);
/* The calling thread owns this place; for place_peers(). */
void place_own(struct place *p);
void place_enter(struct place *p, enum phase phase);
void place_step(struct place *p, uint64_t step);   /* enters PHASE_BEGIN */
void place_chunk(struct place *p, uint32_t chunk); /* enters PHASE_TRANSFER, for each chunk */
void place_bucket(struct place *p, uint64_t step, uint32_t bucket); /* enters PHASE_REDUCE */
/* Within its phase the thread begins to wait, or continues to work. */
void place_wait(struct place *p, enum place_wait wait);
void place_peers(bool waits); /* a comm_opts.on_wait */
/* gate_wait(), during which the thread waits locally. */
bool place_meet(struct place *p, struct gate *gate);

/* ---- any thread ---- */
struct place_view {
    uint64_t step, since_ns, stated_ns;
    uint64_t longest_ns; /* of this phase */
    uint32_t phase, bucket, wait;
    uint32_t times; /* that the thread was in this phase */
};
struct place_view place_read(const struct place *p);

#endif
