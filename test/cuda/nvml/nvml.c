/* nvml.c - libnvidia-ml.so.1 for emulated GPUs: the sensor values are constants that differ between
 * the GPUs.
 *
 *   EMULATED_NVML=none     nvmlInit_v2() finds no driver
 *   EMULATED_NVML=little   a GPU with no sensor except memory
 *   EMULATED_NVML=hot      a GPU that is throttled for two reasons */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9 };

struct nvml_device {
    unsigned int index;
};
static struct nvml_device devices[16];

static int is(const char *what)
{
    const char *said = getenv("EMULATED_NVML");

    return said != NULL && strcmp(said, what) == 0;
}

#define SHOWN __attribute__((visibility("default")))

SHOWN int nvmlInit_v2(void);
SHOWN int nvmlInit_v2(void)
{
    for (unsigned int i = 0; i < sizeof(devices) / sizeof(devices[0]); i++)
        devices[i].index = i;
    return is("none") ? DRIVER_NOT_LOADED : SUCCESS;
}

SHOWN const char *nvmlErrorString(int code);
SHOWN const char *nvmlErrorString(int code)
{
    return code == DRIVER_NOT_LOADED ? "Driver Not Loaded"
           : code == NOT_FOUND       ? "Not Found"
                                     : "Not Supported";
}

/* The emulated runtime numbers its buses from 1. */
SHOWN int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, struct nvml_device **out);
SHOWN int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, struct nvml_device **out)
{
    unsigned int number;

    if (sscanf(bus, "0000:%x:00.0", &number) != 1 || number < 1 || number > 16)
        return NOT_FOUND;
    *out = &devices[number - 1];
    return SUCCESS;
}

SHOWN int nvmlDeviceGetUtilizationRates(struct nvml_device *d, unsigned int out[2]);
SHOWN int nvmlDeviceGetUtilizationRates(struct nvml_device *d, unsigned int out[2])
{
    out[0] = 90 + d->index;
    out[1] = 10;
    return is("little") ? NOT_SUPPORTED : SUCCESS;
}

SHOWN int nvmlDeviceGetMemoryInfo(struct nvml_device *d, unsigned long long out[3]);
SHOWN int nvmlDeviceGetMemoryInfo(struct nvml_device *d, unsigned long long out[3])
{
    out[0] = 2ull << 30;
    out[2] = (1ull << 30) + d->index;
    out[1] = out[0] - out[2];
    return SUCCESS;
}

SHOWN int nvmlDeviceGetTemperature(struct nvml_device *d, int sensor, unsigned int *out);
SHOWN int nvmlDeviceGetTemperature(struct nvml_device *d, int sensor, unsigned int *out)
{
    *out = 60 + d->index;
    return sensor != 0 || is("little") ? NOT_SUPPORTED : SUCCESS;
}

SHOWN int nvmlDeviceGetPowerUsage(struct nvml_device *d, unsigned int *out);
SHOWN int nvmlDeviceGetPowerUsage(struct nvml_device *d, unsigned int *out)
{
    *out = 512500 + 1000 * d->index;
    return is("little") ? NOT_SUPPORTED : SUCCESS;
}

SHOWN int nvmlDeviceGetTotalEccErrors(struct nvml_device *d, int kind, int counter,
                                      unsigned long long *out);
SHOWN int nvmlDeviceGetTotalEccErrors(struct nvml_device *d, int kind, int counter,
                                      unsigned long long *out)
{
    *out = d->index;
    return kind != 1 || counter != 0 || is("little") ? NOT_SUPPORTED : SUCCESS;
}

SHOWN int nvmlDeviceGetClockInfo(struct nvml_device *d, int which, unsigned int *out);
SHOWN int nvmlDeviceGetClockInfo(struct nvml_device *d, int which, unsigned int *out)
{
    *out = 1980 - d->index;
    return which != 1 || is("little") ? NOT_SUPPORTED : SUCCESS;
}

/* The older name of the function: a driver before R535. */
SHOWN int nvmlDeviceGetCurrentClocksThrottleReasons(struct nvml_device *d, unsigned long long *out);
SHOWN int nvmlDeviceGetCurrentClocksThrottleReasons(struct nvml_device *d, unsigned long long *out)
{
    (void)d;
    *out = 0x1 | (is("hot") ? 0x04 | 0x20 : 0);
    return is("little") ? NOT_SUPPORTED : SUCCESS;
}
