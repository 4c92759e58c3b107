/* device.h - the devices of replicas, and host memory.
 *
 * A CPU slot is one thread, which may be pinned to a core. Host memory is allocated in large regions:
 * mapped once, with huge pages if available, and placed by the thread that first writes to it. A
 * shared region is a memfd, so other processes of the host can map the same bytes (lib/comm reduces
 * in place there). Threads: any; one owner per region. */
#ifndef DEVICE_DEVICE_H
#define DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cancel;
struct cuda_api;
struct cuda_event;
struct cuda_stream;
struct err;

enum device_kind { DEVICE_CPU, DEVICE_CUDA };
enum { DEVICE_MAX = 256, DEVICE_ALIGN = 64 };

struct device {
    enum device_kind kind;
    uint32_t index; /* CPU slot number or GPU ordinal */
    int32_t core;   /* CPU: the core to which the thread is pinned; -1: not pinned (more slots than
                       cores) */
};

/* Parses a list of devices: "auto", "cpu", "cpu:N", "cuda" or "cuda:0,2". auto: the GPUs if the
 * plugin finds any, else as for cpu. cpu: device_cores() slots. cpu:N:
 * N slots, assigned to the cores in turn (unpinned if N exceeds the number of cores). Writes at
 * most DEVICE_MAX entries. `first_core` rotates the assignment of cores, so that several tasks of a
 * host share cores only if necessary. Errors: ERR_INPUT (syntax), ERR_DEVICE (CUDA was requested
 * but is not usable: the message has versions and remedy; there is never a fall-back to the
 * CPU). */
int device_parse(const char *spec, uint32_t first_core, struct device *out, uint32_t *n,
                 struct err *err);
void device_name(const struct device *d, char *out, size_t n); /* writes "cpu:0" or "cuda:1" */
uint32_t device_mask(void);  /* number of cores in the affinity mask of the process */
uint32_t device_cores(void); /* the same, at most as many as its processor quota allows (base/cpu_quota.h) */

/* CPU: pins the calling thread to the core of the device; does nothing for core -1. GPU: makes it
 * the current GPU of the thread for later calls through the plugin. Errors: ERR_DEVICE. */
int device_enter(const struct device *d, struct err *err);

/* Allows the calling thread, created by a pinned thread, to run on every core of the process.
 * Ignores errors. */
void device_unpin(void);

/* ---- GPUs ---- */

/* Returns the function table of the plugin (device/cuda.h), which is loaded once and never
 * unloaded. The plugin is searched beside the executable, then on the library path. Errors:
 * ERR_NOENT (not found), ERR_DEVICE (loading failed, or another version); the message contains the
 * loader's message. */
int device_plugin(const struct cuda_api **out, struct err *err);
bool device_has_driver(void); /* true if NVIDIA's driver library can be loaded; false implies no
                                 GPU */
/* Returns the plugin's table for a device returned by device_parse(); NULL: a CPU. */
const struct cuda_api *device_cuda(const struct device *d);
/* Waits until the stream (if not NULL) and the event (if not NULL) are done. A GPU may never
 * finish, so the call also ends when *cancel is set (cancel NULL: cannot be cancelled). Errors:
 * ERR_CANCELED, ERR_DEVICE. */
int device_wait(const struct cuda_api *cuda, struct cuda_stream *s, struct cuda_event *e,
                const struct cancel *cancel, struct err *err);
/* The same, but calls `look` repeatedly while it waits and returns its error, if any. */
int device_watch(const struct cuda_api *cuda, struct cuda_stream *s, struct cuda_event *e,
                 int (*look)(void *arg, struct err *err), void *arg, struct err *err);

/* ---- host memory ---- */

struct device_mem {
    void *base;   /* NULL: closed */
    size_t bytes; /* mapped size: rounded up to a page */
    int fd;       /* memfd of a shared region, close-on-exec; -1: private */
};

/* Maps zeroed memory; bytes may be 0. On failure *m is closed. Errors: ERR_NOMEM, ERR_IO. */
int device_mem_open(struct device_mem *m, size_t bytes, bool shared, struct err *err);
void device_mem_close(struct device_mem *m); /* idempotent */

#endif
