/* copy.c - memory functions of the runtime: allocation, pinned host memory, copies. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/emulator_priv.h"

enum { HOST_ALIGN = 256, GARBAGE = 0xff };

/* Pinned host memory. */
struct pinned {
    struct pinned *next;
    char *base; /* owned, unless registered */
    size_t bytes;
    bool is_registered;
};
static struct pinned *pinned; /* owned list; under the lock */

static cudaError_t unlock_and_return(cudaError_t rc)
{
    emulated_unlock();
    return emulated_fail(rc);
}

/* Takes the lock and returns cudaSuccess, or returns an error without the lock. */
static cudaError_t enter_unless_capturing(void)
{
    cudaError_t rc = emulated_enter();

    if (rc != cudaSuccess)
        return rc;
    emulated_lock();
    rc = capture_forbids(NULL);
    return rc == cudaSuccess ? cudaSuccess : unlock_and_return(rc);
}

/* ---- device memory ---- */

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    static uint64_t n_calls; /* under the lock */
    cudaError_t rc = enter_unless_capturing();

    if (rc != cudaSuccess)
        return rc;
    if (++n_calls == emulated_settings()->fault_malloc)
        return unlock_and_return(cudaErrorMemoryAllocation);
    if (bytes == 0) {
        *memory = NULL;
        return unlock_and_return(cudaSuccess);
    }
    return unlock_and_return(memory_new(emulated_device(), bytes, memory));
}

cudaError_t cudaFree(void *memory)
{
    cudaError_t rc = enter_unless_capturing();
    int device;

    if (rc != cudaSuccess)
        return rc;
    if (memory == NULL)
        return unlock_and_return(cudaSuccess);
    device = memory_device(memory);
    if (device >= 0)
        stream_force_device(device, false);
    if (device < 0 || !memory_free(device, memory))
        emulated_die("cudaFree of %p, which is not an allocation (or is freed already)", memory);
    return unlock_and_return(emulated_sticky(device));
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    cudaError_t rc = emulated_enter();

    if (rc != cudaSuccess)
        return rc;
    emulated_lock();
    *total_bytes = emulated_settings()->memory;
    *free_bytes = *total_bytes - memory_used(emulated_device());
    return unlock_and_return(cudaSuccess);
}

/* ---- pinned memory ---- */

/* Returns the entry that contains p; NULL: pageable memory. */
static struct pinned **pinned_of(const void *p)
{
    struct pinned **at = &pinned;

    while (*at != NULL &&
           !((const char *)p >= (*at)->base && (const char *)p < (*at)->base + (*at)->bytes))
        at = &(*at)->next;
    return at;
}

static void pin(char *base, size_t bytes, bool is_registered)
{
    struct pinned *p = emulated_alloc(sizeof(*p));

    *p = (struct pinned){ pinned, base, bytes, is_registered };
    pinned = p;
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    cudaError_t rc = enter_unless_capturing();
    void *p = NULL;

    if (rc != cudaSuccess)
        return rc;
    if ((flags & ~(unsigned)cudaHostAllocPortable) != 0)
        return unlock_and_return(cudaErrorInvalidValue);
    if (bytes > 0 && posix_memalign(&p, HOST_ALIGN, bytes) != 0)
        return unlock_and_return(cudaErrorMemoryAllocation);
    if (p != NULL) {
        memset(p, GARBAGE, bytes);
        pin(p, bytes, false);
    }
    *memory = p;
    return unlock_and_return(cudaSuccess);
}

cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    return cudaHostAlloc(memory, bytes, cudaHostAllocDefault);
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
    cudaError_t rc = enter_unless_capturing();

    if (rc != cudaSuccess)
        return rc;
    if ((flags & ~(unsigned)cudaHostRegisterPortable) != 0 || memory == NULL || bytes == 0)
        return unlock_and_return(cudaErrorInvalidValue);
    if (*pinned_of(memory) != NULL)
        return unlock_and_return(cudaErrorHostMemoryAlreadyRegistered);
    pin(memory, bytes, true);
    return unlock_and_return(cudaSuccess);
}

static cudaError_t unpin(void *memory, bool is_registered, cudaError_t otherwise)
{
    cudaError_t rc;
    struct pinned **at, *p;

    if (memory == NULL && !is_registered)
        return cudaSuccess;
    rc = enter_unless_capturing();
    if (rc != cudaSuccess)
        return rc;
    at = pinned_of(memory);
    p = *at;
    if (p == NULL || p->base != memory || p->is_registered != is_registered)
        return unlock_and_return(otherwise);
    *at = p->next;
    if (!is_registered)
        free(p->base);
    free(p);
    return unlock_and_return(cudaSuccess);
}

cudaError_t cudaFreeHost(void *memory)
{
    return unpin(memory, false, cudaErrorInvalidValue);
}

cudaError_t cudaHostUnregister(void *memory)
{
    return unpin(memory, true, cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer)
{
    cudaError_t rc = emulated_enter();
    int device;

    if (rc != cudaSuccess)
        return rc;
    emulated_lock();
    memset(attributes, 0, sizeof(*attributes));
    device = memory_owner(pointer, 1);
    attributes->device = device >= 0 ? device : -1;
    if (device >= 0) {
        attributes->type = cudaMemoryTypeDevice;
        attributes->devicePointer = (void *)(uintptr_t)pointer;
    } else if (*pinned_of(pointer) != NULL) {
        attributes->type = cudaMemoryTypeHost;
        attributes->device = emulated_device();
        attributes->devicePointer = attributes->hostPointer = (void *)(uintptr_t)pointer;
    }
    return unlock_and_return(cudaSuccess);
}

void emulated_open(int device)
{
    emulated_lock();
    memory_open(device);
    emulated_unlock();
}

void emulated_close(int device)
{
    emulated_lock();
    memory_close(device);
    emulated_unlock();
}

int emulated_owner(const void *p, size_t bytes)
{
    int device;

    emulated_lock();
    device = memory_owner(p, bytes);
    emulated_unlock();
    return device;
}

/* ---- copies ---- */

struct copy {
    char *to;
    const char *from; /* NULL: fill with `value` */
    int value;
    size_t bytes;
};

/* Returns whether p is device memory. Ends the process if [p, p + bytes) is not within one
 * allocation. */
static bool is_device(const char *what, const void *p, size_t bytes)
{
    int device = memory_device(p);

    if (device >= 0 && memory_owner(p, bytes) < 0)
        emulated_die("%s: %zu bytes at %p of device %d are not in one allocation", what, bytes, p,
                     device);
    return device >= 0;
}

static cudaError_t check(const struct copy *c, enum cudaMemcpyKind kind, int device)
{
    static const struct {
        bool to, from; /* true: device memory */
    } sides[] = {
        [cudaMemcpyHostToHost] = { false, false },
        [cudaMemcpyHostToDevice] = { true, false },
        [cudaMemcpyDeviceToHost] = { false, true },
        [cudaMemcpyDeviceToDevice] = { true, true },
    };
    bool to = is_device("copy to", c->to, c->bytes);
    bool from = c->from != NULL && is_device("copy from", c->from, c->bytes);

    if ((unsigned)kind > cudaMemcpyDefault)
        return cudaErrorInvalidMemcpyDirection;
    if (kind != cudaMemcpyDefault && (sides[kind].to != to || sides[kind].from != from))
        return cudaErrorInvalidValue;
    if ((to && memory_owner(c->to, 1) != device) || (from && memory_owner(c->from, 1) != device))
        return cudaErrorInvalidValue; /* no peer access */
    if (c->from != NULL && c->to < c->from + c->bytes && c->from < c->to + c->bytes)
        emulated_die("copy of %zu bytes from %p to %p: they overlap", c->bytes,
                     (const void *)c->from, (void *)c->to);
    return cudaSuccess;
}

static int run_copy(void *args)
{
    const struct copy *c = args;

    emulated_lock(); /* it may have been freed since the call */
    (void)is_device("copy to", c->to, c->bytes);
    if (c->from != NULL)
        (void)is_device("copy from", c->from, c->bytes);
    emulated_unlock();
    if (c->from == NULL)
        memset(c->to, c->value, c->bytes);
    else
        memcpy(c->to, c->from, c->bytes);
    return EMULATED_DONE;
}

static cudaError_t submit(const struct copy *c, enum cudaMemcpyKind kind, const char *name,
                          cudaStream_t stream)
{
    cudaError_t rc = emulated_enter();

    if (rc != cudaSuccess)
        return rc;
    emulated_lock();
    if (stream == NULL)
        emulated_die("%s: the default stream is not emulated: name one", name);
    if (!stream_is_known(stream))
        return unlock_and_return(cudaErrorInvalidResourceHandle);
    if (c->bytes == 0)
        return unlock_and_return(cudaSuccess);
    rc = check(c, kind, stream->device);
    if (rc != cudaSuccess)
        return unlock_and_return(rc);
    return unlock_and_return(stream_submit(stream, work_new(name, run_copy, c, sizeof(*c))));
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    const struct copy c = { .to = to, .from = from, .bytes = bytes };

    if (bytes > 0 && (to == NULL || from == NULL))
        return emulated_fail(cudaErrorInvalidValue);
    return submit(&c, kind, "cudaMemcpyAsync", stream);
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    const struct copy c = { .to = memory, .value = value, .bytes = bytes };
    int device;

    emulated_lock();
    device = memory_device(memory);
    emulated_unlock();
    if (bytes > 0 && device < 0)
        return emulated_fail(cudaErrorInvalidValue);
    return submit(&c, cudaMemcpyDefault, "cudaMemsetAsync", stream);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    const struct copy c = { .to = to, .from = from, .bytes = bytes };
    cudaError_t rc = enter_unless_capturing();
    int device = emulated_device();

    if (rc != cudaSuccess)
        return rc;
    if (bytes == 0)
        return unlock_and_return(cudaSuccess);
    if (to == NULL || from == NULL)
        return unlock_and_return(cudaErrorInvalidValue);
    stream_force_device(device, true);
    rc = emulated_sticky(device);
    if (rc == cudaSuccess)
        rc = check(&c, kind, device);
    if (rc == cudaSuccess) {
        memory_open(device);
        memcpy(to, from, bytes);
        memory_close(device);
    }
    return unlock_and_return(rc);
}
