/* device.h - where a replica computes and the memory it computes in.
 *
 * A CPU slot is one core and one thread pinned to it. Memory comes in large regions: mapped once,
 * asked to be huge pages, first touched by whoever fills it. A shared region is a memfd, so that
 * other processes of the host can map the same bytes (lib/comm reduces in place there).
 * Threads: any; a region is one owner's. */
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
    int32_t core;   /* CPU: the core to pin to; -1: not pinned (more slots than cores) */
};

/* "auto", "cpu", "cpu:N", "cuda", "cuda:0,2". auto: one CPU slot per core of the affinity mask, or
 * the GPUs if the plugin finds some. cpu alone is one slot per core; cpu:N is N slots, cores in turn
 * (unpinned when N is more than the cores). Writes at most DEVICE_MAX.
 * `first_core` rotates the cores given out, so that several tasks of one host do not share one
 * when they need not. Errors: ERR_INPUT (not one of these), ERR_DEVICE (asked for CUDA and there
 * is none: versions and remedy in the text; never a fall-back). */
int device_parse(const char *spec, uint32_t first_core, struct device *out, uint32_t *n,
                 struct err *err);
void device_name(const struct device *d, char *out, size_t n); /* "cpu:0", "cuda:1" */
uint32_t device_cores(void); /* cores in this process's affinity mask */

/* A CPU: pins the calling thread to the device's core; nothing for core -1. A GPU: what the thread does
 * through the plugin from now on is for this one. */
int device_enter(const struct device *d, struct err *err);

/* The calling thread, started by a pinned one, may run on every core of the process again. */
void device_roam(void);

/* ---- GPUs ---- */

/* The plugin's table (device/cuda.h), loaded once and for good. Found beside the executable, else on the
 * library path. Errors: ERR_NOENT (there is none), ERR_DEVICE (it does not load, or is not of this
 * version); both say what the loader said. */
int device_plugin(const struct cuda_api **out, struct err *err);
bool device_has_driver(void); /* can NVIDIA's library be loaded? Without it there is no GPU to be seen */
/* Of a device that device_parse() gave out; NULL: a CPU, whose memory everybody can touch. */
const struct cuda_api *device_cuda(const struct device *d);
/* Until the stream, or the event, has come to its end. Looks also at *cancel, if given: ERR_CANCELED. A
 * GPU that never ends is nobody's excuse to wait for ever: set *cancel. */
int device_wait(const struct cuda_api *cuda, struct cuda_stream *s, struct cuda_event *e,
                const struct cancel *cancel, struct err *err);
/* The same; `look` is asked again and again, and ends it by an error of its own. */
int device_watch(const struct cuda_api *cuda, struct cuda_stream *s, struct cuda_event *e,
                 int (*look)(void *arg, struct err *err), void *arg, struct err *err);

/* ---- memory of the host ---- */

struct device_mem {
    void *base;   /* NULL: not open */
    size_t bytes; /* as mapped: rounded up to a page */
    int fd;       /* the memfd of a shared region, close-on-exec; else -1 */
};

/* Zeroed. Errors: ERR_NOMEM, ERR_IO. On failure *m is closed. bytes 0 is allowed. */
int device_mem_open(struct device_mem *m, size_t bytes, bool shared, struct err *err);
void device_mem_close(struct device_mem *m); /* idempotent */

#endif
