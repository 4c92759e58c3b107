/* select.c - see select.h. */
#include "engine/select.h"

#include <stddef.h>

#include "base/check.h"
#include "device/device.h"
#include "engine/cpu.h"
#include "engine/gpu.h"

const struct engine_ops *engine_select(const struct device *d)
{
    switch (d->kind) {
    case DEVICE_CPU:
        return &engine_cpu;
    case DEVICE_CUDA:
        return &engine_gpu;
    }
    CHECK(!"a device that does not exist");
    return NULL;
}
