/* nvml.cuh - GPU sensors through NVML, libnvidia-ml.so.1, which belongs to the driver.
 *
 * The library is opened at the first use, so the plugin also loads on hosts without it. Functions
 * that the library lacks are not used. */
#ifndef DEVICE_NVML_CUH
#define DEVICE_NVML_CUH

#include "device/device_cuda.cuh"

/* Reads the sensors of a GPU; an unavailable value is negative in *out. Any thread; may take some
 * milliseconds. Errors: ERR_DEVICE (NVML cannot be loaded, or does not know the GPU). */
int nvml_read(uint32_t gpu, struct cuda_reading *out, struct err *err);

#endif
