/* block.c - runs a launch: the blocks one after another, the threads of a block on fibers.
 *
 * A fiber runs threads as plain calls, one after another. A thread that reaches a barrier keeps its
 * fiber, and another fiber continues: that of a released thread, else an idle one, which starts the
 * next thread. So a kernel without barriers needs one fiber and is a loop of calls. If there is
 * neither and the block is not done, threads wait at a barrier that others never reach. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cuda_emulated.h>

#include "cuda/emulator_priv.h"
#include "cuda/fiber.h"

enum {
    THREADS_MAX = 1024, /* per block */
    WARP = 32,
    GRID_YZ_MAX = 65535,
    BLOCK_Z_MAX = 64,
    SHARED_DEFAULT = 48 << 10,
    SHARED_MAX = 227 << 10,
    SHARED_ALIGN = 128,
    ALWAYS_POISONED = 8, /* poison static shared memory before each of the first blocks of a
                            launch, */
    SOMETIMES_POISONED = 16, /* then before every 16th block */
    KERNELS_MAX = 1024 /* kernels with cudaFuncSetAttribute */
};

__thread struct emulated_now emulated_now;
extern __thread char emulated_shared_begin[], emulated_shared_end[];

/* The arguments of a launch, copied to the stream. */
struct kernel_call {
    const char *name;
    void (*invoke)(const void *args);
    unsigned int grid[3], block[3];
    size_t shared;
    _Alignas(16) unsigned char args[];
};

enum thread_state { NEW, RUNNING, AT_BARRIER, AT_MEETING, READY, DONE };

struct thread {
    struct fiber *fiber; /* set while the thread waits */
    const char *file;    /* position of the barrier at which it waits */
    int line;
    enum emulated_meeting what;
    uint32_t mask;
    int source;
    uint64_t value; /* value contributed to the meeting, then its result */
};

/* The state of a host thread that runs kernels. */
struct machine {
    struct fiber *host_fiber, *now;
    struct fiber *idle[THREADS_MAX + 1];
    unsigned int n_idle;
    void *shared_map; /* [SHARED_MAX rounded to pages][guard page] */
    char *shared_end;
    const struct kernel_call *call;
    unsigned int n, n_started, n_done, n_at_barrier;
    bool is_reversed; /* starts the last thread first */
    uint8_t state[THREADS_MAX];
    struct thread threads[THREADS_MAX];
    uint16_t ready[THREADS_MAX]; /* ring buffer */
    unsigned int ready_first, n_ready;
    uint32_t alive[THREADS_MAX / WARP], waiting[THREADS_MAX / WARP]; /* a bit per lane */
};

static __thread struct machine *machine;
static pthread_key_t machine_key;
static pthread_once_t machine_once = PTHREAD_ONCE_INIT;

/* ---- the state of this thread ---- */

static size_t shared_bytes(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (SHARED_MAX + page - 1) / page * page;
}

static void machine_free(void *p)
{
    struct machine *m = p;
    unsigned int i;

    for (i = 0; i < m->n_idle; i++)
        fiber_free(m->idle[i]);
    fiber_free(m->host_fiber);
    munmap(m->shared_map, shared_bytes() + (size_t)sysconf(_SC_PAGESIZE));
    free(m);
    machine = NULL;
}

static void make_key(void)
{
    if (pthread_key_create(&machine_key, machine_free) != 0)
        emulated_die("no key for the memory of threads");
}

static struct machine *machine_here(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = shared_bytes();
    struct machine *m = machine;

    if (m != NULL)
        return m;
    if (&emulated_shared_end[0] < &emulated_shared_begin[0])
        emulated_die("the program is not linked as shared_begin.c, .cu files, shared_end.c");
    pthread_once(&machine_once, make_key);
    m = emulated_alloc(sizeof(*m));
    m->host_fiber = fiber_here();
    m->shared_map = mmap(NULL, bytes + page, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m->host_fiber == NULL || m->shared_map == MAP_FAILED)
        emulated_die("no memory to run kernels");
    m->shared_end = (char *)m->shared_map + bytes;
    mprotect(m->shared_end, page, PROT_NONE);
    machine = m;
    pthread_setspecific(machine_key, m);
    return m;
}

/* ---- scheduling ---- */

static void set_thread(struct machine *m, unsigned int i)
{
    const unsigned int *block = m->call->block;

    m->state[i] = RUNNING;
    emulated_now.index = i;
    if (block[0] == m->n) { /* avoids a division, which is expensive beside short kernels */
        emulated_now.thread.x = i;
        return;
    }
    emulated_now.thread.x = i % block[0];
    emulated_now.thread.y = i / block[0] % block[1];
    emulated_now.thread.z = i / block[0] / block[1];
}

static void release(struct machine *m, unsigned int i)
{
    m->state[i] = READY;
    m->ready[(m->ready_first + m->n_ready++) % THREADS_MAX] = (uint16_t)i;
}

static void deadlock(const struct machine *m) __attribute__((noreturn));
static void deadlock(const struct machine *m)
{
    static const char *const where[] = { [AT_BARRIER] = "__syncthreads",
                                         [AT_MEETING] = "a warp's barrier or shuffle" };
    char text[1024];
    size_t len = 0;
    unsigned int i, n;

    /* Group threads that wait at the same barrier. */
    for (i = 0; i < m->n && len < sizeof(text); i += n) {
        const struct thread *t = &m->threads[i];

        n = 1;
        while (i + n < m->n && m->state[i + n] == m->state[i] &&
               (m->state[i] == DONE || m->threads[i + n].line == t->line))
            n++;
        if (m->state[i] == DONE)
            len += (size_t)snprintf(text + len, sizeof(text) - len,
                                    "\n  threads %u to %u have returned", i, i + n - 1);
        else
            len += (size_t)snprintf(text + len, sizeof(text) - len,
                                    "\n  threads %u to %u wait at %s (%s:%d)", i, i + n - 1,
                                    where[m->state[i]], t->file, t->line);
    }
    emulated_die("block (%u, %u, %u): not all threads reach the same barrier:%s",
                 emulated_now.block.x, emulated_now.block.y, emulated_now.block.z, text);
}

static void run_threads(void);

/* Returns the fiber to continue with, and sets its thread. */
static struct fiber *choose_fiber(struct machine *m)
{
    struct fiber *f;

    if (m->n_ready > 0) {
        unsigned int i = m->ready[m->ready_first];

        m->ready_first = (m->ready_first + 1) % THREADS_MAX;
        m->n_ready--;
        set_thread(m, i);
        return m->threads[i].fiber;
    }
    if (m->n_done == m->n)
        return m->host_fiber;
    if (m->n_started == m->n)
        deadlock(m);
    if (m->n_idle > 0)
        return m->idle[--m->n_idle];
    f = fiber_new(run_threads);
    if (f == NULL)
        emulated_die("no memory for the stack of a thread");
    return f;
}

static void switch_to(struct machine *m, struct fiber *to)
{
    struct fiber *from = m->now;

    m->now = to;
    fiber_switch(from, to);
}

/* Suspends the running thread until it is released. */
static void suspend_thread(struct machine *m, unsigned int i, enum thread_state state)
{
    m->state[i] = state;
    m->threads[i].fiber = m->now;
    switch_to(m, choose_fiber(m));
}

static void try_meetings(struct machine *m, unsigned int warp);

/* The body of every fiber. */
static void run_threads(void)
{
    struct machine *m = machine;

    for (;;) {
        while (m->n_ready == 0 && m->n_started < m->n) {
            unsigned int i = m->is_reversed ? m->n - 1 - m->n_started : m->n_started;

            m->n_started++;
            set_thread(m, i);
            m->call->invoke(m->call->args);
            i = emulated_now.index;
            m->state[i] = DONE;
            m->n_done++;
            m->alive[i / WARP] &= ~(1u << i % WARP);
            if (m->waiting[i / WARP] != 0) /* the others do not wait for a returned thread */
                try_meetings(m, i / WARP);
        }
        /* This fiber becomes idle, but may be chosen to start another thread. */
        m->idle[m->n_idle++] = m->now;
        switch_to(m, choose_fiber(m));
    }
}

/* ---- barriers ---- */

static struct machine *machine_running(const char *what)
{
    if (machine == NULL || machine->call == NULL)
        emulated_die("%s outside a kernel", what);
    return machine;
}

void emulated_syncthreads(const char *file, int line)
{
    struct machine *m = machine_running("__syncthreads");
    unsigned int i = emulated_now.index, k;

    m->threads[i].file = file;
    m->threads[i].line = line;
    if (++m->n_at_barrier < m->n) {
        suspend_thread(m, i, AT_BARRIER);
        return;
    }
    /* The last thread checks that all others wait here. */
    for (k = 0; k < m->n; k++)
        if (k != i && (m->threads[k].line != line || strcmp(m->threads[k].file, file) != 0)) {
            m->state[i] = AT_BARRIER;
            deadlock(m);
        }
    m->n_at_barrier = 0;
    for (k = 0; k < m->n; k++) {
        unsigned int other = m->is_reversed ? m->n - 1 - k : k;

        if (other != i)
            release(m, other);
    }
}

static bool same_meeting(const struct thread *a, const struct thread *b)
{
    return a->line == b->line && a->mask == b->mask && a->what == b->what &&
           strcmp(a->file, b->file) == 0;
}

/* Returns the lanes that participate in the meeting of lane `lane`, if all of them wait; else 0.
 * Lanes that have returned or do not exist are not waited for. */
static uint32_t lanes_arrived(const struct machine *m, unsigned int warp, unsigned int lane)
{
    const struct thread *first = &m->threads[warp * WARP], *t = &first[lane];
    uint32_t lanes = t->mask & m->alive[warp];
    unsigned int k;

    if ((lanes & ~m->waiting[warp]) != 0)
        return 0;
    for (k = 0; k < WARP; k++)
        if ((lanes >> k & 1) != 0 && !same_meeting(t, &first[k]))
            return 0;
    return lanes;
}

/* Computes all results at once, so that no thread can return before another has read its result. */
static void complete_meeting(struct machine *m, unsigned int warp, uint32_t lanes)
{
    struct thread *t = &m->threads[warp * WARP];
    uint64_t brought[WARP];
    uint32_t ballot = 0;
    unsigned int k;

    for (k = 0; k < WARP; k++) {
        bool is_in = (lanes >> k & 1) != 0;

        brought[k] = is_in ? t[k].value : UINT64_MAX; /* NaN in every width */
        ballot |= (uint32_t)(is_in && t[k].value != 0) << k;
    }
    for (k = 0; k < WARP; k++)
        if ((lanes >> k & 1) != 0)
            t[k].value = t[k].what == EMULATED_VOTE ? ballot : brought[t[k].source];
    m->waiting[warp] &= ~lanes;
}

static void release_lanes(struct machine *m, unsigned int warp, uint32_t lanes)
{
    unsigned int k;

    for (k = 0; k < WARP; k++)
        if ((lanes >> k & 1) != 0)
            release(m, warp * WARP + k);
}

static void try_meetings(struct machine *m, unsigned int warp)
{
    unsigned int k;

    for (k = 0; k < WARP; k++)
        if ((m->waiting[warp] >> k & 1) != 0) {
            uint32_t lanes = lanes_arrived(m, warp, k);

            if (lanes != 0) {
                complete_meeting(m, warp, lanes);
                release_lanes(m, warp, lanes);
            }
        }
}

uint64_t emulated_meet(enum emulated_meeting what, unsigned int mask, int source, uint64_t value,
                       const char *file, int line)
{
    struct machine *m = machine_running("a warp's barrier or shuffle");
    unsigned int i = emulated_now.index, warp = i / WARP, lane = i % WARP;
    struct thread *t = &m->threads[i];
    uint32_t lanes;

    if ((mask >> lane & 1) == 0)
        emulated_die("lane %u is not in the mask %08x it brings (%s:%d)", lane, mask, file, line);
    *t = (struct thread){ .file = file, .line = line, .what = what, .mask = mask,
                          .source = source, .value = value };
    m->waiting[warp] |= 1u << lane;
    lanes = lanes_arrived(m, warp, lane);
    if (lanes == 0) {
        suspend_thread(m, i, AT_MEETING);
    } else {
        complete_meeting(m, warp, lanes);
        release_lanes(m, warp, lanes & ~(1u << lane));
    }
    return t->value;
}

/* ---- blocks ---- */

/* Static shared memory belongs to all kernels of the program, so it is not poisoned before every
 * block. */
static void poison(struct machine *m, const struct kernel_call *call, uint64_t nth)
{
    size_t rounded = (call->shared + SHARED_ALIGN - 1) / SHARED_ALIGN * SHARED_ALIGN;

    emulated_now.shared = m->shared_end - rounded;
    memset(emulated_now.shared, 0xff, rounded);
    if (nth < ALWAYS_POISONED || nth % SOMETIMES_POISONED == 0)
        memset(emulated_shared_begin, 0xff, (size_t)(emulated_shared_end - emulated_shared_begin));
}

static void block_start(struct machine *m, const struct kernel_call *call)
{
    unsigned int warp, n = call->block[0] * call->block[1] * call->block[2];

    m->call = call;
    m->n = n;
    emulated_now.thread = (struct uint3){ 0, 0, 0 };
    m->n_started = m->n_done = m->n_at_barrier = m->n_ready = 0;
    memset(m->state, NEW, n);
    for (warp = 0; warp * WARP < n; warp++) {
        unsigned int lanes = n - warp * WARP;

        m->alive[warp] = lanes >= WARP ? UINT32_MAX : (1u << lanes) - 1;
        m->waiting[warp] = 0;
    }
}

static uint64_t gcd(uint64_t a, uint64_t b)
{
    return b == 0 ? a : gcd(b, a % b);
}

int block_run(void *kernel_call)
{
    const struct kernel_call *call = kernel_call;
    struct machine *m = machine_here();
    uint64_t n = (uint64_t)call->grid[0] * call->grid[1] * call->grid[2], nth, random, step, at;

    emulated_lock();
    random = emulated_random();
    emulated_unlock();
    /* Visit all blocks with a step that is coprime to their number. */
    for (step = n > 2 ? random % n : 1; step == 0 || gcd(step, n) != 1;)
        step = step % n + 1;
    at = (random >> 20) % n;
    emulated_now.grid_dim = (struct uint3){ call->grid[0], call->grid[1], call->grid[2] };
    emulated_now.block_dim = (struct uint3){ call->block[0], call->block[1], call->block[2] };
    for (nth = 0; nth < n; nth++, at = (at + step) % n) {
        emulated_now.block.x = (unsigned int)(at % call->grid[0]);
        emulated_now.block.y = (unsigned int)(at / call->grid[0] % call->grid[1]);
        emulated_now.block.z = (unsigned int)(at / call->grid[0] / call->grid[1]);
        m->is_reversed = (random >> (nth % 64) & 1) != 0;
        poison(m, call, nth);
        block_start(m, call);
        m->now = m->host_fiber;
        switch_to(m, choose_fiber(m));
    }
    m->call = NULL;
    return EMULATED_DONE;
}

/* ---- the launch ---- */

/* Kernels with an increased limit of dynamic shared memory; under the lock. */
static struct {
    const void *kernel;
    size_t bytes;
} allowed[KERNELS_MAX];
static unsigned int n_allowed;

static size_t shared_allowed(const void *kernel)
{
    unsigned int i;

    for (i = 0; i < n_allowed; i++)
        if (allowed[i].kernel == kernel)
            return allowed[i].bytes;
    return SHARED_DEFAULT;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    cudaError_t rc = emulated_enter();
    unsigned int i;

    if (rc != cudaSuccess)
        return rc;
    if (kernel == NULL)
        return emulated_fail(cudaErrorInvalidDeviceFunction);
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout)
        return cudaSuccess; /* a hint */
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || value > SHARED_MAX)
        return emulated_fail(cudaErrorInvalidValue);
    emulated_lock();
    for (i = 0; i < n_allowed && allowed[i].kernel != kernel; i++)
        ;
    if (i == KERNELS_MAX)
        emulated_die("cudaFuncSetAttribute for more than %d kernels", KERNELS_MAX);
    allowed[i].kernel = kernel;
    allowed[i].bytes = value < SHARED_DEFAULT ? SHARED_DEFAULT : (size_t)value;
    n_allowed = i == n_allowed ? n_allowed + 1 : n_allowed;
    emulated_unlock();
    return cudaSuccess;
}

static void check_size(const char *name, const void *kernel, const unsigned int grid[3],
                       const unsigned int block[3], size_t shared)
{
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    size_t most;

    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[0] > INT32_MAX ||
        grid[1] > GRID_YZ_MAX || grid[2] > GRID_YZ_MAX)
        emulated_die("launch of %s: grid (%u, %u, %u), expected 1 to (%d, %d, %d)", name, grid[0],
                     grid[1], grid[2], INT32_MAX, GRID_YZ_MAX, GRID_YZ_MAX);
    if (block[0] > THREADS_MAX || block[1] > THREADS_MAX || block[2] > BLOCK_Z_MAX ||
        threads == 0 || threads > THREADS_MAX)
        emulated_die("launch of %s: block (%u, %u, %u), expected 1 to %d threads, z to %d", name,
                     block[0], block[1], block[2], THREADS_MAX, BLOCK_Z_MAX);
    emulated_lock();
    most = shared_allowed(kernel);
    emulated_unlock();
    if (shared > most)
        emulated_die("launch of %s: %zu bytes of shared memory, and without cudaFuncSetAttribute "
                     "for more it may have %zu (at most %d)",
                     name, shared, most, SHARED_MAX);
}

static uint64_t n_launches; /* under the lock */

uint64_t emulated_launches(void)
{
    uint64_t n;

    emulated_lock();
    n = n_launches;
    emulated_unlock();
    return n;
}

void emulated_launch_kernel(const char *name, const void *kernel, void (*invoke)(const void *args),
                            const void *args, size_t args_bytes, const unsigned int grid[3],
                            const unsigned int block[3], size_t shared, cudaStream_t stream)
{
    const struct emulated_settings *settings = emulated_settings();
    struct kernel_call *call;
    struct work *w;

    if (emulated_enter() != cudaSuccess)
        return; /* recorded as the last error */
    check_size(name, kernel, grid, block, shared);
    if (args_bytes > 4096)
        emulated_die("launch of %s: %zu bytes of arguments, at most 4096", name, args_bytes);
    call = emulated_alloc(sizeof(*call) + args_bytes);
    *call = (struct kernel_call){ .name = name, .invoke = invoke, .shared = shared };
    memcpy(call->grid, grid, sizeof(call->grid));
    memcpy(call->block, block, sizeof(call->block));
    memcpy(call->args, args, args_bytes);
    emulated_lock();
    if (!stream_is_known(stream))
        emulated_die("launch of %s: %s", name,
                     stream == NULL ? "the default stream is not emulated: name one"
                                    : "no such stream, or it was destroyed");
    if (stream->device != emulated_device())
        emulated_die("launch of %s: a stream of device %d, and the current device is %d", name,
                     stream->device, emulated_device());
    w = work_new(name, block_run, call, sizeof(*call) + args_bytes);
    n_launches++;
    w->meets_fault = n_launches == settings->fault_launch;
    w->hangs = n_launches == settings->fault_hang;
    (void)emulated_fail(stream_submit(stream, w)); /* records the error */
    emulated_unlock();
    free(call);
}
