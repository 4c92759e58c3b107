/* nvml.cuh - sensors of GPUs: NVML, libnvidia-ml.so.1, which comes with the driver.
 *
 * It is opened when somebody asks, so that a plugin loads where there is none; of its functions those are
 * called that it has. */
#ifndef DEVICE_NVML_CUH
#define DEVICE_NVML_CUH

#include "device/device_cuda.cuh"

/* Errors: ERR_DEVICE: there is no NVML (the loader's words), or it does not know the GPU. What it does not
 * tell is negative in *out. Any thread; it may take some milliseconds. */
int nvml_read(uint32_t gpu, struct cuda_reading *out, struct err *err);

#endif
