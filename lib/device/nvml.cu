/* nvml.cu - see nvml.cuh. Signatures and constants are from the manual of NVML. If a function has
 * several versions, the newest one that every driver since R535 has is used. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "device/nvml.cuh"

enum { NVML_SUCCESS = 0 };
enum { NVML_TEMPERATURE_GPU = 0, NVML_MEMORY_ERROR_UNCORRECTED = 1, NVML_VOLATILE_ECC = 0, NVML_CLOCK_SM = 1 };

struct nvml_device;       /* nvmlDevice_t points to one */
struct nvml_utilisation { /* percent of the last sample period */
    unsigned int gpu, memory;
};
struct nvml_memory { /* bytes */
    unsigned long long total, free, used;
};

static struct {
    pthread_mutex_t lock; /* protects opening */
    bool is_open;
    int (*init)(void);
    const char *(*error)(int code);
    int (*by_pci)(const char *bus_id, struct nvml_device **out);
    int (*utilisation)(struct nvml_device *d, struct nvml_utilisation *out);
    int (*memory)(struct nvml_device *d, struct nvml_memory *out);
    int (*temperature)(struct nvml_device *d, int sensor, unsigned int *celsius);
    int (*power)(struct nvml_device *d, unsigned int *milliwatts);
    int (*ecc)(struct nvml_device *d, int kind, int counter, unsigned long long *errors);
    int (*clock)(struct nvml_device *d, int which, unsigned int *mhz);
    int (*reasons)(struct nvml_device *d, unsigned long long *bits);
} nvml = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* A function, its names from newest to oldest, and whether NVML is unusable without it. */
static const struct symbol {
    void **at;
    const char *name, *older;
    bool is_needed;
} symbols[] = {
    { (void **)&nvml.init, "nvmlInit_v2", NULL, true },
    { (void **)&nvml.error, "nvmlErrorString", NULL, true },
    { (void **)&nvml.by_pci, "nvmlDeviceGetHandleByPciBusId_v2", NULL, true },
    { (void **)&nvml.utilisation, "nvmlDeviceGetUtilizationRates", NULL, false },
    { (void **)&nvml.memory, "nvmlDeviceGetMemoryInfo", NULL, false },
    { (void **)&nvml.temperature, "nvmlDeviceGetTemperature", NULL, false },
    { (void **)&nvml.power, "nvmlDeviceGetPowerUsage", NULL, false },
    { (void **)&nvml.ecc, "nvmlDeviceGetTotalEccErrors", NULL, false },
    { (void **)&nvml.clock, "nvmlDeviceGetClockInfo", NULL, false },
    { (void **)&nvml.reasons, "nvmlDeviceGetCurrentClocksEventReasons",
      "nvmlDeviceGetCurrentClocksThrottleReasons", false },
};

/* Reasons for a reduced clock. The table omits reasons that are normal: the GPU is idle (0x1), or
 * the clock was set by a user (0x2, 0x100). */
static const struct {
    unsigned long long bit;
    const char *what;
} reasons[] = {
    { 0x04, "power cap" },         { 0x08, "hardware slowdown" },  { 0x10, "sync boost" },
    { 0x20, "software thermal" },  { 0x40, "hardware thermal" },   { 0x80, "power brake" },
};

static int open_library(struct err *err)
{
    void *handle = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    int status;

    if (handle == NULL)
        return err_set(err, ERR_DEVICE, "sensors of GPUs: NVML cannot be loaded (%s)", dlerror());
    for (const struct symbol &s : symbols) {
        *s.at = dlsym(handle, s.name);
        if (*s.at == NULL && s.older != NULL)
            *s.at = dlsym(handle, s.older);
        if (*s.at == NULL && s.is_needed) {
            dlclose(handle);
            return err_set(err, ERR_DEVICE, "sensors of GPUs: libnvidia-ml.so.1 lacks %s", s.name);
        }
    }
    status = nvml.init();
    if (status == NVML_SUCCESS)
        return 0;
    (void)err_set(err, ERR_DEVICE, "sensors of GPUs: nvmlInit failed: %s", nvml.error(status));
    dlclose(handle);
    return ERR_DEVICE;
}

/* Opens the library, which is never closed. A failed attempt is repeated at the next call, because
 * the driver may be loaded later. */
static int open_once(struct err *err)
{
    int rc = 0;

    pthread_mutex_lock(&nvml.lock);
    if (!nvml.is_open) {
        rc = open_library(err);
        nvml.is_open = rc == 0;
    }
    pthread_mutex_unlock(&nvml.lock);
    return rc;
}

static void print_reasons(unsigned long long bits, char *out, size_t n)
{
    size_t at = 0;

    out[0] = '\0';
    for (const auto &r : reasons)
        if ((bits & r.bit) != 0 && at < n)
            at += (size_t)snprintf(out + at, n - at, "%s%s", at > 0 ? ", " : "", r.what);
}

static void read_sensors(struct nvml_device *d, struct cuda_reading *out)
{
    struct nvml_utilisation used;
    struct nvml_memory memory;
    unsigned int number;
    unsigned long long large;

    if (nvml.utilisation != NULL && nvml.utilisation(d, &used) == NVML_SUCCESS)
        out->utilisation = used.gpu / 100.0;
    if (nvml.memory != NULL && nvml.memory(d, &memory) == NVML_SUCCESS) {
        out->memory_used = (double)memory.used;
        out->memory_total = (double)memory.total;
    }
    if (nvml.temperature != NULL &&
        nvml.temperature(d, NVML_TEMPERATURE_GPU, &number) == NVML_SUCCESS)
        out->celsius = number;
    if (nvml.power != NULL && nvml.power(d, &number) == NVML_SUCCESS)
        out->watts = number / 1e3;
    if (nvml.ecc != NULL &&
        nvml.ecc(d, NVML_MEMORY_ERROR_UNCORRECTED, NVML_VOLATILE_ECC, &large) == NVML_SUCCESS)
        out->ecc_errors = (double)large;
    if (nvml.clock != NULL && nvml.clock(d, NVML_CLOCK_SM, &number) == NVML_SUCCESS)
        out->clock_mhz = number;
    if (nvml.reasons != NULL && nvml.reasons(d, &large) == NVML_SUCCESS)
        print_reasons(large, out->throttled, sizeof(out->throttled));
}

int nvml_read(uint32_t gpu, struct cuda_reading *out, struct err *err)
{
    char bus[32];
    struct nvml_device *d;
    int status, rc = open_once(err);

    memset(out, 0, sizeof(*out));
    out->utilisation = out->memory_used = out->memory_total = out->celsius = out->watts =
        out->ecc_errors = out->clock_mhz = -1;
    /* NVML counts all GPUs of the host, CUDA only the visible ones: identify the GPU by its bus
     * address. */
    if (rc == 0)
        rc = cuda_check(cudaDeviceGetPCIBusId(bus, sizeof(bus), (int)gpu), err, "sensors of GPUs");
    if (rc < 0)
        return rc;
    status = nvml.by_pci(bus, &d);
    if (status != NVML_SUCCESS)
        return err_set(err, ERR_DEVICE, "sensors of GPUs: NVML has no GPU %u at %s: %s", gpu, bus,
                       nvml.error(status));
    read_sensors(d, out);
    return 0;
}
