/* runtime.c - settings, the lock, errors, devices and their properties. */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/emulator_priv.h"

enum { RUNTIME_VERSION = CUDART_VERSION, DEFAULT_GPUS = 2, SMS = 132 };
#define DEFAULT_MEMORY ((size_t)2 << 30)

static struct emulated_settings settings;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static uint64_t random_state;
static cudaError_t broken[EMULATED_DEVICES_MAX]; /* sticky errors; written under the lock */

__thread const char *emulated_running;
static __thread int current;
static __thread cudaError_t last;

/* ---- settings ---- */

static uint64_t number(const char *name, const char *text, uint64_t most)
{
    char *end;
    unsigned long long n;

    errno = 0;
    n = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || n > most)
        emulated_die("%s: '%s', expected a number up to %llu", name, text,
                     (unsigned long long)most);
    return n;
}

static uint64_t variable(const char *name, uint64_t otherwise, uint64_t most)
{
    const char *text = getenv(name);

    return text == NULL ? otherwise : number(name, text, most);
}

static void read_fault(const char *text)
{
    const struct {
        const char *name;
        uint64_t *nth;
    } faults[] = { { "launch@", &settings.fault_launch },
                   { "hang@", &settings.fault_hang },
                   { "malloc@", &settings.fault_malloc } };
    size_t i;

    if (text == NULL || text[0] == '\0')
        return;
    for (i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        if (strncmp(text, faults[i].name, strlen(faults[i].name)) == 0) {
            *faults[i].nth = number("EMULATED_FAULT", text + strlen(faults[i].name), UINT64_MAX);
            return;
        }
    emulated_die("EMULATED_FAULT: '%s', expected launch@N, hang@N or malloc@N", text);
}

static void read_settings(void)
{
    settings.devices = (int)variable("EMULATED_GPUS", DEFAULT_GPUS, EMULATED_DEVICES_MAX);
    settings.memory = variable("EMULATED_MEMORY", DEFAULT_MEMORY, (uint64_t)1 << 40);
    settings.seed = variable("EMULATED_SEED", EMULATED_SEED_LAZY, UINT64_MAX);
    settings.driver = (int)variable("EMULATED_DRIVER", RUNTIME_VERSION, INT32_MAX);
    settings.capability = (int)variable("EMULATED_CAPABILITY", 90, 999);
    read_fault(getenv("EMULATED_FAULT"));
    random_state = settings.seed;
}

const struct emulated_settings *emulated_settings(void)
{
    pthread_once(&once, read_settings);
    return &settings;
}

static void __attribute__((destructor)) tell_leaks(void)
{
    size_t bytes = emulated_live_bytes();

    if (bytes > 0)
        fprintf(stderr, "emulated GPU: %zu bytes of device memory were not freed\n", bytes);
}

size_t emulated_live_bytes(void)
{
    size_t bytes = 0;
    int i;

    emulated_lock();
    for (i = 0; i < EMULATED_DEVICES_MAX; i++)
        bytes += emulated_sticky(i) != cudaSuccess ? 0 : memory_used(i); /* cudaFree fails there */
    emulated_unlock();
    return bytes;
}

/* ---- the lock ---- */

void emulated_lock(void)
{
    pthread_mutex_lock(&lock);
}

void emulated_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

void emulated_changed(void)
{
    pthread_cond_broadcast(&change);
}

void emulated_wait(void)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&change, &lock, &until);
}

uint64_t emulated_random(void)
{
    uint64_t x = random_state += 0x9e3779b97f4a7c15u; /* splitmix64 */

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

void *emulated_alloc(size_t bytes)
{
    void *p = calloc(1, bytes);

    if (p == NULL)
        emulated_die("out of memory");
    return p;
}

/* ---- errors ---- */

void emulated_die(const char *format, ...)
{
    va_list args;

    fprintf(stderr, "emulated GPU: ");
    if (emulated_running != NULL)
        fprintf(stderr, "%s: ", emulated_running);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n");
    abort();
}

cudaError_t emulated_fail(cudaError_t error)
{
    if (error != cudaSuccess)
        last = error;
    return error;
}

int emulated_device(void)
{
    return current;
}

cudaError_t emulated_sticky(int device)
{
    return __atomic_load_n(&broken[device], __ATOMIC_ACQUIRE);
}

void emulated_break(int device, cudaError_t error)
{
    __atomic_store_n(&broken[device], error, __ATOMIC_RELEASE);
}

/* Does not check the sticky error. */
static cudaError_t enter_driver(void)
{
    const struct emulated_settings *s = emulated_settings();

    if (emulated_running != NULL)
        emulated_die("it calls CUDA");
    if (s->driver < RUNTIME_VERSION)
        return emulated_fail(cudaErrorInsufficientDriver);
    if (s->devices == 0)
        return emulated_fail(cudaErrorNoDevice);
    return cudaSuccess;
}

cudaError_t emulated_enter(void)
{
    cudaError_t rc = enter_driver();

    return rc != cudaSuccess ? rc : emulated_fail(emulated_sticky(current));
}

cudaError_t cudaPeekAtLastError(void)
{
    cudaError_t rc = emulated_sticky(current);

    return rc != cudaSuccess ? rc : last;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t rc = cudaPeekAtLastError();

    last = cudaSuccess;
    return rc;
}

#define ERROR(name, text) { name, #name, text }
static const struct {
    cudaError_t code;
    const char *name, *text;
} errors[] = {
    ERROR(cudaSuccess, "no error"),
    ERROR(cudaErrorInvalidValue, "invalid argument"),
    ERROR(cudaErrorMemoryAllocation, "out of memory"),
    ERROR(cudaErrorInitializationError, "initialization error"),
    ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    ERROR(cudaErrorInvalidDevicePointer, "invalid device pointer"),
    ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    ERROR(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"),
    ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    ERROR(cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device"),
    ERROR(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"),
    ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ERROR(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    ERROR(cudaErrorNotReady, "device not ready"),
    ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    ERROR(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped"),
    ERROR(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region"),
    ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    ERROR(cudaErrorNotSupported, "operation not supported"),
    ERROR(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    ERROR(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"),
    ERROR(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences"),
    ERROR(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    ERROR(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"),
    ERROR(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream"),
    ERROR(cudaErrorStreamCaptureWrongThread, "attempt to terminate a thread-local capture sequence from another thread"),
    ERROR(cudaErrorUnknown, "unknown error"),
};

static size_t error_row(cudaError_t error)
{
    size_t i;

    for (i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        if (errors[i].code == error)
            return i;
    return SIZE_MAX;
}

const char *cudaGetErrorName(cudaError_t error)
{
    size_t i = error_row(error);

    return i == SIZE_MAX ? "unrecognized error code" : errors[i].name;
}

const char *cudaGetErrorString(cudaError_t error)
{
    size_t i = error_row(error);

    return i == SIZE_MAX ? "unrecognized error code" : errors[i].text;
}

/* ---- versions ---- */

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = emulated_settings()->driver;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = RUNTIME_VERSION;
    return cudaSuccess;
}

/* ---- devices ---- */

cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t rc = enter_driver();

    *count = rc == cudaSuccess ? emulated_settings()->devices : 0;
    return rc;
}

static cudaError_t enter_device(int device)
{
    cudaError_t rc = enter_driver();

    if (rc == cudaSuccess && (device < 0 || device >= emulated_settings()->devices))
        rc = emulated_fail(cudaErrorInvalidDevice);
    return rc;
}

cudaError_t cudaSetDevice(int device)
{
    cudaError_t rc = enter_device(device);

    if (rc != cudaSuccess)
        return rc;
    current = device;
    return emulated_fail(emulated_sticky(device));
}

cudaError_t cudaGetDevice(int *device)
{
    cudaError_t rc = emulated_enter();

    *device = current;
    return rc;
}

/* EMULATED_NAMES: item `device` of a list with commas; the last one for all devices after it. */
static void write_name(int device, char *out, size_t n)
{
    const char *at = getenv("EMULATED_NAMES"), *comma;

    if (at == NULL || at[0] == '\0')
        at = "emulated GPU";
    while (device-- > 0 && (comma = strchr(at, ',')) != NULL)
        at = comma + 1;
    snprintf(out, n, "%.*s", (int)strcspn(at, ","), at);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    cudaError_t rc = enter_device(device);

    if (rc != cudaSuccess)
        return rc;
    memset(properties, 0, sizeof(*properties));
    *properties = (struct cudaDeviceProp){
        .uuid = { .bytes = { 'e', 'm', 'u', 'l', 'a', 't', 'e', 'd', [15] = (char)device } },
        .totalGlobalMem = emulated_settings()->memory,
        .sharedMemPerBlock = 48 << 10,
        .sharedMemPerBlockOptin = 227 << 10,
        .sharedMemPerMultiprocessor = 228 << 10,
        .regsPerBlock = 65536,
        .warpSize = 32,
        .maxThreadsPerBlock = 1024,
        .maxThreadsPerMultiProcessor = 2048,
        .maxThreadsDim = { 1024, 1024, 64 },
        .maxGridSize = { INT32_MAX, 65535, 65535 },
        .major = emulated_settings()->capability / 10,
        .minor = emulated_settings()->capability % 10,
        .multiProcessorCount = SMS,
        .l2CacheSize = 50 << 20,
        .memoryBusWidth = 5120,
        .asyncEngineCount = 3,
        .concurrentKernels = 1,
        .pciBusID = device + 1,
    };
    write_name(device, properties->name, sizeof(properties->name));
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    struct cudaDeviceProp p;
    cudaError_t rc = cudaGetDeviceProperties(&p, device);
    size_t i;

    if (rc != cudaSuccess)
        return rc;
    {
        const struct {
            enum cudaDeviceAttr attribute;
            int value;
        } values[] = {
            { cudaDevAttrMaxThreadsPerBlock, p.maxThreadsPerBlock },
            { cudaDevAttrMaxGridDimX, p.maxGridSize[0] },
            { cudaDevAttrMaxGridDimY, p.maxGridSize[1] },
            { cudaDevAttrMaxGridDimZ, p.maxGridSize[2] },
            { cudaDevAttrMaxSharedMemoryPerBlock, (int)p.sharedMemPerBlock },
            { cudaDevAttrWarpSize, p.warpSize },
            { cudaDevAttrMultiProcessorCount, p.multiProcessorCount },
            { cudaDevAttrMaxThreadsPerMultiProcessor, p.maxThreadsPerMultiProcessor },
            { cudaDevAttrComputeCapabilityMajor, p.major },
            { cudaDevAttrComputeCapabilityMinor, p.minor },
            { cudaDevAttrMaxSharedMemoryPerMultiprocessor, (int)p.sharedMemPerMultiprocessor },
            { cudaDevAttrMaxSharedMemoryPerBlockOptin, (int)p.sharedMemPerBlockOptin },
        };

        for (i = 0; i < sizeof(values) / sizeof(values[0]); i++)
            if (values[i].attribute == attribute) {
                *value = values[i].value;
                return cudaSuccess;
            }
    }
    return emulated_fail(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device)
{
    cudaError_t rc = enter_device(device);

    if (rc != cudaSuccess)
        return rc;
    if (bytes < 13) /* length of the text */
        return emulated_fail(cudaErrorInvalidValue);
    snprintf(text, (size_t)bytes, "0000:%02x:00.0", (unsigned int)device + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return emulated_enter();
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    cudaError_t rc = enter_device(device);

    *can = 0;
    return rc != cudaSuccess ? rc : enter_device(peer);
}
