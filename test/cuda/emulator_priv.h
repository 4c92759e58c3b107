/* emulator_priv.h - shared by the files of the emulator. The caller holds the lock unless a comment
 * says otherwise. */
#ifndef CUDA_EMULATOR_PRIV_H
#define CUDA_EMULATOR_PRIV_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/emulator.h"

enum { EMULATED_DEVICES_MAX = 16, EMULATED_ARGS_MAX = 64 << 10, EMULATED_SEED_LAZY = 1 };

/* ---- runtime.c ---- */

struct emulated_settings {
    int devices;
    size_t memory; /* bytes per device */
    uint64_t seed;
    int driver;
    int capability; /* 10 * major + minor */
    uint64_t fault_launch, fault_hang, fault_malloc; /* 0: never */
};
const struct emulated_settings *emulated_settings(void); /* without the lock */

void emulated_lock(void);
void emulated_unlock(void);
void emulated_wait(void); /* until a change, or for a millisecond */
void emulated_changed(void);

cudaError_t emulated_fail(cudaError_t error); /* records the thread's last error; without the
                                                 lock */
int emulated_device(void);                    /* of this thread; without the lock */
cudaError_t emulated_sticky(int device);
/* every later call on the device returns this error */
void emulated_break(int device, cudaError_t error);
uint64_t emulated_random(void);

/* Name of the kernel or operation that runs in this thread; NULL: host code. Without the lock. */
extern __thread const char *emulated_running;

/* ---- memory.c ---- */

cudaError_t memory_new(int device, size_t bytes, void **out);
bool memory_free(int device, void *p); /* false: not an allocation of the device */
void memory_open(int device);          /* calls are counted */
void memory_close(int device);
int memory_owner(const void *p, size_t bytes);
int memory_device(const void *p); /* device whose address space contains p, allocated or not; or
                                     -1 */
size_t memory_used(int device);

/* ---- block.c: runs a launch; without the lock ---- */

int block_run(void *kernel_call);

/* ---- stream.c, graph.c ---- */

/* A point in the work of a stream for which others wait. */
struct mark {
    unsigned int references;
    bool is_done;
    struct CUstream_st *stream; /* the stream that will reach it; valid until is_done */
    uint64_t ns;                /* monotonic clock, when done */
};

enum work_kind { WORK_RUN, WORK_RECORD, WORK_WAIT };

struct work {
    struct work *next; /* next in its stream; NULL in a graph */
    enum work_kind kind;
    struct mark *mark; /* RECORD, WAIT: owns one reference */
    const char *name;  /* RUN */
    int (*run)(void *args);
    void (*drop)(void *args); /* frees what args own; NULL: nothing */
    bool meets_fault, hangs;
    size_t bytes; /* size of args */
    _Alignas(16) unsigned char args[];
};

struct capture;

struct CUstream_st {
    struct CUstream_st *next;
    int device;
    bool is_busy;      /* a thread runs its first work, without the lock */
    bool is_destroyed; /* freed when it has no more work */
    bool is_blocking;  /* synchronises with the default stream in both directions */
    struct work *first, **last;
    struct capture *capture; /* NULL: not capturing */
    uint32_t *after;         /* owned; nodes of the capture that precede the next one */
    uint32_t n_after;
};

struct CUevent_st {
    struct CUevent_st *next;
    int device;
    unsigned int flags;
    struct mark *mark;       /* NULL: never recorded outside of a capture */
    uint64_t capture_id; /* capture in which it was last recorded, possibly ended; 0: outside */
    uint32_t *after;     /* owned; the nodes that it represents in the capture */
    uint32_t n_after;
};

void *emulated_alloc(size_t bytes); /* zeroed; ends the process if memory is exhausted; without the
                                       lock */

bool stream_is_known(const struct CUstream_st *s);
void stream_push(struct CUstream_st *s, struct work *w);
struct mark *stream_mark(struct CUstream_st *s); /* records a mark: the caller owns a reference */
void stream_wait(struct CUstream_st *s, struct mark *m);
cudaError_t stream_force(struct mark *m); /* runs work until the mark is done; returns the error of
                                             the device */
void stream_force_device(int device, bool blocking_only);
void mark_release(struct mark *m);
struct work *work_new(const char *name, int (*run)(void *), const void *args, size_t bytes);
void work_free(struct work *w);
int work_execute(struct work *w, int device); /* without the lock */

/* Enqueues work of a library or a kernel on the stream, or adds it to the graph that the stream
 * captures. */
cudaError_t stream_submit(struct CUstream_st *s, struct work *w);

/* Returns cudaSuccess, or the error of a call that would wait or allocate while this thread
 * captures, which also invalidates the capture. `s`: only this stream; NULL: all. */
cudaError_t capture_forbids(struct CUstream_st *s);
/* takes ownership of w, also on failure */
cudaError_t capture_add(struct CUstream_st *s, struct work *w);
/* If s captures: `drop` is called with the args of the last added node when its graph and all
 * launches of it are gone; with the lock held. */
void capture_keep(struct CUstream_st *s, void (*drop)(void *args));
cudaError_t capture_record(struct CUstream_st *s, struct CUevent_st *e);
cudaError_t capture_wait(struct CUstream_st *s, struct CUevent_st *e);
void capture_abandon(struct CUstream_st *s); /* called when the stream is destroyed */

#endif
