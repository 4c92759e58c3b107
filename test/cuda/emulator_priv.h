/* emulator_priv.h - what the files of the emulator share. Everything here is called with the lock
 * held, unless it says otherwise. */
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
    size_t memory; /* bytes of each device */
    uint64_t seed;
    int driver;
    int capability; /* 10 * major + minor */
    uint64_t fault_launch, fault_hang, fault_malloc; /* 0: never */
};
const struct emulated_settings *emulated_settings(void); /* needs no lock */

void emulated_lock(void);
void emulated_unlock(void);
void emulated_wait(void);   /* until something changed, or a millisecond has passed */
void emulated_changed(void);

cudaError_t emulated_fail(cudaError_t error); /* notes it as this thread's last; needs no lock */
int emulated_device(void);                    /* of this thread; needs no lock */
cudaError_t emulated_sticky(int device);
void emulated_break(int device, cudaError_t error); /* from now on every call answers this */
uint64_t emulated_random(void);

/* What runs in this thread: a kernel or operation; NULL: code of the host. Needs no lock. */
extern __thread const char *emulated_running;

/* ---- memory.c ---- */

cudaError_t memory_new(int device, size_t bytes, void **out);
bool memory_free(int device, void *p); /* false: not an allocation of the device */
void memory_open(int device);          /* counted */
void memory_close(int device);
int memory_owner(const void *p, size_t bytes);
int memory_device(const void *p); /* whose address space p is in, allocated or not, or -1 */
size_t memory_used(int device);

/* ---- block.c: runs a launch; needs the lock not held ---- */

int block_run(void *kernel_call);

/* ---- stream.c, graph.c ---- */

/* A point in the work of a stream that others wait for. */
struct mark {
    unsigned int references;
    bool is_done;
    struct CUstream_st *stream; /* that will reach it; valid until is_done */
    uint64_t ns;                /* of the monotonic clock, when done */
};

enum work_kind { WORK_RUN, WORK_RECORD, WORK_WAIT };

struct work {
    struct work *next; /* in its stream; NULL in a graph */
    enum work_kind kind;
    struct mark *mark; /* RECORD, WAIT: one reference */
    const char *name;  /* RUN */
    int (*run)(void *args);
    void (*drop)(void *args); /* NULL, or frees what args own */
    bool meets_fault, hangs;
    size_t bytes; /* of args */
    _Alignas(16) unsigned char args[];
};

struct capture;

struct CUstream_st {
    struct CUstream_st *next;
    int device;
    bool is_busy;      /* its first work runs in some thread, without the lock */
    bool is_destroyed; /* freed once it has no work */
    bool is_blocking;  /* waits for the default stream, and it for this */
    struct work *first, **last;
    struct capture *capture; /* NULL: not capturing */
    uint32_t *after;         /* owned; nodes of the capture that the next one follows */
    uint32_t n_after;
};

struct CUevent_st {
    struct CUevent_st *next;
    int device;
    unsigned int flags;
    struct mark *mark;       /* NULL: never recorded outside a capture */
    uint64_t capture_id; /* last recorded in this capture, which may be over; 0: outside */
    uint32_t *after;     /* owned; the nodes that it then stands for */
    uint32_t n_after;
};

void *emulated_alloc(size_t bytes); /* zeroed, or the process ends; needs no lock */

bool stream_is_known(const struct CUstream_st *s);
void stream_push(struct CUstream_st *s, struct work *w);
struct mark *stream_mark(struct CUstream_st *s); /* records one: the caller has a reference */
void stream_wait(struct CUstream_st *s, struct mark *m);
cudaError_t stream_force(struct mark *m); /* until done; the error of the device then */
void stream_force_device(int device, bool blocking_only);
void mark_release(struct mark *m);
struct work *work_new(const char *name, int (*run)(void *), const void *args, size_t bytes);
void work_free(struct work *w);
int work_execute(struct work *w, int device); /* needs the lock not held */

/* Work of a library or a kernel: on the stream, or into the graph it captures. */
cudaError_t stream_submit(struct CUstream_st *s, struct work *w);

/* cudaSuccess, or the error of a call that would wait or allocate while this thread captures; that
 * capture is then invalid. `s`: of the stream alone, or NULL. */
cudaError_t capture_forbids(struct CUstream_st *s);
cudaError_t capture_add(struct CUstream_st *s, struct work *w); /* owns w, also on failure */
/* If s captures: `drop` is called with the args of the node that was added last when its graph, and every launch of
 * it, is gone; with the lock held. */
void capture_keep(struct CUstream_st *s, void (*drop)(void *args));
cudaError_t capture_record(struct CUstream_st *s, struct CUevent_st *e);
cudaError_t capture_wait(struct CUstream_st *s, struct CUevent_st *e);
void capture_abandon(struct CUstream_st *s); /* the stream is destroyed */

#endif
