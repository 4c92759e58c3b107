#include "device/device.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cpu_quota.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/text.h"
#include "device/cuda.h"

enum { CORES_MAX = 4096, HUGE_BYTES = 2 << 20 };

/* ---- cores ---- */

/* Lists the cores of the affinity mask in ascending order, at most CORES_MAX. Returns their number,
 * at least 1. */
static uint32_t cores_list(int32_t cores[CORES_MAX])
{
    uint32_t n = 0;
    cpu_set_t *set = CPU_ALLOC(CORES_MAX);
    size_t bytes = CPU_ALLOC_SIZE(CORES_MAX);
    int i;

    if (set != NULL && sched_getaffinity(0, bytes, set) == 0)
        for (i = 0; i < CORES_MAX; i++)
            if (CPU_ISSET_S(i, bytes, set))
                cores[n++] = i;
    CPU_FREE(set);
    if (n == 0)
        cores[n++] = -1; /* the mask is not available: one slot, not pinned */
    return n;
}

uint32_t device_mask(void)
{
    int32_t cores[CORES_MAX];

    return cores_list(cores);
}

uint32_t device_cores(void)
{
    return cpu_quota_limit(device_mask());
}

static void cpu_slots(uint32_t first_core, uint32_t want, struct device *out, uint32_t *n)
{
    int32_t cores[CORES_MAX];
    uint32_t n_cores = cores_list(cores), i;

    if (want == 0)
        want = cpu_quota_limit(n_cores < DEVICE_MAX ? n_cores : DEVICE_MAX);
    for (i = 0; i < want; i++)
        out[i] = (struct device){ .kind = DEVICE_CPU,
                                  .index = i,
                                  .core = want > n_cores
                                              ? -1
                                              : cores[((uint64_t)first_core + i) % n_cores] };
    *n = want;
}

int device_enter(const struct device *d, struct err *err)
{
    cpu_set_t *set;
    size_t bytes = CPU_ALLOC_SIZE(CORES_MAX);
    int rc = 0;

    if (d->kind == DEVICE_CUDA)
        return device_cuda(d)->enter(d->index, err);
    if (d->core < 0)
        return 0;
    CHECK(d->core < CORES_MAX);
    set = CPU_ALLOC(CORES_MAX);
    if (set == NULL)
        return err_set(err, ERR_NOMEM, "pin to core %d: out of memory", d->core);
    CPU_ZERO_S(bytes, set);
    CPU_SET_S(d->core, bytes, set);
    if (sched_setaffinity(0, bytes, set) < 0) {
        err_sys(err, errno, "pin cpu:%u to core %d", d->index, d->core);
        rc = err_wrap(err, ERR_DEVICE,
                      "the cores this process may use have changed (was the cpuset edited?)");
    }
    CPU_FREE(set);
    return rc;
}

void device_unpin(void)
{
    cpu_set_t *set = CPU_ALLOC(CORES_MAX);
    size_t bytes = CPU_ALLOC_SIZE(CORES_MAX);

    /* The main thread is never pinned, so its mask is that of the process. On failure the thread
     * keeps its core, which is only slower. */
    if (set != NULL && sched_getaffinity(getpid(), bytes, set) == 0)
        (void)sched_setaffinity(0, bytes, set);
    CPU_FREE(set);
}

/* ---- the specification ---- */

static int spec_error(const char *spec, const char *why, struct err *err)
{
    return err_set(err, ERR_INPUT,
                   "devices '%s': %s; expected auto, cpu, cpu:N (1 to %d slots), cuda or "
                   "cuda:LIST (GPU ordinals such as 0,2)",
                   spec, why, DEVICE_MAX);
}

static int parse_cpu(const char *spec, const char *count, uint32_t *want, struct err *err)
{
    uint64_t n = 0;

    if (count[0] == '\0') {
        *want = 0;
        return 0;
    }
    if (count[0] != ':')
        return spec_error(spec, "unknown kind of device", err);
    if (!text_u64(count + 1, DEVICE_MAX, &n) || n == 0)
        return spec_error(spec, "the number of slots is out of range or not a number", err);
    *want = (uint32_t)n;
    return 0;
}

/* Parses the ordinals, in any order and each at most once. *n = 0: all GPUs. */
static int parse_cuda(const char *spec, const char *list, struct device *out, uint32_t *n,
                      struct err *err)
{
    bool seen[DEVICE_MAX] = { false };

    *n = 0;
    if (list[0] == '\0')
        return 0;
    if (list[0] != ':')
        return spec_error(spec, "unknown kind of device", err);
    do {
        char word[8];
        size_t len = strcspn(++list, ",");
        uint64_t ordinal = 0;

        snprintf(word, sizeof(word), "%.*s", len < sizeof(word) ? (int)len : 0, list);
        if (!text_u64(word, DEVICE_MAX - 1, &ordinal))
            return spec_error(spec, "a GPU ordinal is out of range or not a number", err);
        if (seen[ordinal])
            return spec_error(spec, "a GPU is repeated", err);
        seen[ordinal] = true;
        out[(*n)++] = (struct device){ .kind = DEVICE_CUDA, .index = (uint32_t)ordinal, .core = -1 };
        list += len;
    } while (*list == ',');
    return 0;
}

static void print_versions(const struct cuda_api *cuda, char *out, size_t n)
{
    struct cuda_versions v;

    cuda->versions(&v);
    snprintf(out, n, "driver for CUDA %d.%d, plugin of CUDA %d.%d", v.driver / 1000,
             v.driver % 1000 / 10, v.runtime / 1000, v.runtime % 1000 / 10);
}

static int check_gpu(const struct cuda_api *cuda, uint32_t index, const struct cuda_gpu *gpus,
                     uint32_t n_gpus, struct err *err)
{
    const struct cuda_gpu *g = &gpus[index];
    char versions[128];

    print_versions(cuda, versions, sizeof(versions));
    if (index >= n_gpus)
        return err_set(err, ERR_DEVICE, "there is no GPU %u, the driver lists %u%s%s (%s)", index,
                       n_gpus, n_gpus > 0 ? ", the first is " : "", n_gpus > 0 ? gpus[0].name : "",
                       versions);
    if (10 * g->major + g->minor < cuda->least_capability)
        return err_set(err, ERR_DEVICE,
                       "GPU %u, %s, has compute capability %u.%u, the plugin has code for %u.%u and later (%s): "
                       "select other GPUs, or build the plugin with CUDA_ARCH=%u", index, g->name,
                       g->major, g->minor, cuda->least_capability / 10, cuda->least_capability % 10, versions,
                       10 * g->major + g->minor);
    return 0;
}

/* Checks that the GPUs out [*n] exist and are supported. *n = 0: lists all GPUs; finding none is
 * not an error. */
static int find_gpus(struct device *out, uint32_t *n, struct err *err)
{
    const struct cuda_api *cuda;
    struct cuda_gpu gpus[DEVICE_MAX];
    uint32_t n_gpus = 0, i;
    int rc = device_plugin(&cuda, err);

    if (rc == 0)
        rc = cuda->gpus(gpus, DEVICE_MAX, &n_gpus, err);
    if (rc < 0)
        return rc;
    if (*n == 0) {
        for (i = 0; i < n_gpus; i++)
            out[i] = (struct device){ .kind = DEVICE_CUDA, .index = i, .core = -1 };
        *n = n_gpus;
    }
    for (i = 0; rc == 0 && i < *n; i++)
        rc = check_gpu(cuda, out[i].index, gpus, n_gpus, err);
    return rc;
}

/* Uses CPUs only if the plugin or the GPU is absent. A plugin that is installed but does not work
 * is an error. */
static int parse_auto(uint32_t first_core, struct device *out, uint32_t *n, struct err *err)
{
    int rc;

    *n = 0;
    if (!device_has_driver()) { /* avoids the time to load the plugin and its libraries */
        cpu_slots(first_core, 0, out, n);
        return 0;
    }
    rc = find_gpus(out, n, err);
    if (rc < 0 && rc != ERR_NOENT)
        return err_wrap(err, rc, "devices 'auto'");
    if (*n == 0)
        cpu_slots(first_core, 0, out, n);
    return 0;
}

static int no_gpu_error(const char *spec, struct err *err)
{
    const struct cuda_api *cuda;
    struct cuda_versions v;
    char versions[128];
    int rc = device_plugin(&cuda, err);

    if (rc < 0)
        return rc;
    cuda->versions(&v);
    if (v.driver == 0)
        return err_set(err, ERR_DEVICE, "devices '%s': this host has no NVIDIA driver (plugin of CUDA %d.%d): "
                                        "install one for that version or later, or use 'cpu'", spec,
                       v.runtime / 1000, v.runtime % 1000 / 10);
    print_versions(cuda, versions, sizeof(versions));
    return err_set(err, ERR_DEVICE,
                   "devices '%s': the driver lists no GPU (%s): none is there, or "
                   "CUDA_VISIBLE_DEVICES hides them; make one visible, or use 'cpu'",
                   spec, versions);
}

static int parse_gpus(const char *spec, struct device *out, uint32_t *n, struct err *err)
{
    int rc;

    if (!text_starts(spec, "cuda"))
        return spec_error(spec, "unknown kind of device", err);
    rc = parse_cuda(spec, spec + strlen("cuda"), out, n, err);
    if (rc == 0) {
        rc = find_gpus(out, n, err);
        if (rc < 0)
            return err_wrap(err, ERR_DEVICE, "devices '%s'", spec);
    }
    if (rc == 0 && *n == 0)
        rc = no_gpu_error(spec, err);
    return rc;
}

int device_parse(const char *spec, uint32_t first_core, struct device *out, uint32_t *n,
                 struct err *err)
{
    uint32_t want = 0, found = 0;
    int rc;

    if (strcmp(spec, "auto") == 0) {
        rc = parse_auto(first_core, out, &found, err);
    } else if (!text_starts(spec, "cpu")) {
        rc = parse_gpus(spec, out, &found, err);
    } else {
        rc = parse_cpu(spec, spec + strlen("cpu"), &want, err);
        if (rc == 0)
            cpu_slots(first_core, want, out, &found);
    }
    if (rc == 0)
        *n = found;
    return rc;
}

void device_name(const struct device *d, char *out, size_t n)
{
    snprintf(out, n, "%s:%u", d->kind == DEVICE_CPU ? "cpu" : "cuda", d->index);
}

/* ---- memory ---- */

/* Maps `bytes` so that a large region starts at a huge page: reserves address space with slack on
 * both sides and unmaps the slack.
 *   [slack][ region ][slack] */
static void *map_aligned(size_t bytes, int fd)
{
    size_t slack = bytes >= HUGE_BYTES ? HUGE_BYTES : 0, head;
    char *space, *base;
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;

    space =
        mmap(NULL, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED)
        return NULL;
    head = slack > 0 ? (HUGE_BYTES - (uintptr_t)space % HUGE_BYTES) % HUGE_BYTES : 0;
    base = space + head;
    if (mmap(base, bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0) == MAP_FAILED) {
        int why = errno;

        munmap(space, bytes + slack);
        errno = why;
        return NULL;
    }
    if (head > 0)
        munmap(space, head);
    if (slack > head)
        munmap(base + bytes, slack - head);
    return base;
}

int device_mem_open(struct device_mem *m, size_t bytes, bool shared, struct err *err)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char size[32];
    int why;

    *m = (struct device_mem){ .fd = -1 };
    text_bytes(size, sizeof(size), bytes);
    if (bytes > (size_t)PTRDIFF_MAX - HUGE_BYTES - page || fault_hit("device_mem"))
        return err_set(err, ERR_NOMEM, "map %s of memory: out of memory", size);
    bytes = bytes == 0 ? page : (bytes + page - 1) / page * page;

    if (shared) {
        m->fd = memfd_create("trainerd", MFD_CLOEXEC);
        if (m->fd < 0 || ftruncate(m->fd, (off_t)bytes) < 0)
            goto fail;
    }
    m->base = map_aligned(bytes, m->fd);
    if (m->base == NULL)
        goto fail;
    m->bytes = bytes;
    (void)madvise(m->base, bytes, MADV_HUGEPAGE); /* without support in the kernel: small pages */
    return 0;

fail:
    why = errno == EFBIG ? ENOMEM : errno; /* a file cannot have this size */
    if (m->fd >= 0)
        close(m->fd);
    m->fd = -1;
    return err_sys(err, why, "map %s of %s memory", size, shared ? "shared" : "private");
}

void device_mem_close(struct device_mem *m)
{
    if (m->base == NULL) /* a struct that is all zero is closed, too; its fd is not ours */
        return;
    munmap(m->base, m->bytes);
    if (m->fd >= 0)
        close(m->fd);
    *m = (struct device_mem){ .fd = -1 };
}
