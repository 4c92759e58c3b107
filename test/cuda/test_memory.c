/* Memory, mistakes of host code, and the settings in the environment. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <cuda_runtime.h>

#include "cuda/emulator.h"
#include "cuda/test_kernels.h"
#include "cuda/test_kit.h"

/* ---- memory ---- */

static void memory_calls_with_invalid_arguments_fail(void **state)
{
    size_t before = emulated_live_bytes(), free_bytes, total;
    char *p = new_memory(1000), host[10];
    struct cudaPointerAttributes attributes;
    cudaStream_t s = new_stream();
    void *pinned;

    (void)state;
    assert_int_equal((uintptr_t)p % 256, 0);
    assert_int_equal(emulated_live_bytes() - before, 1024);
    OK(cudaMemGetInfo(&free_bytes, &total));
    assert_int_equal(total, (size_t)2 << 30);
    assert_int_equal(total - free_bytes, emulated_live_bytes());
    OK(cudaMallocHost(&pinned, 100));
    OK(cudaPointerGetAttributes(&attributes, p + 999));
    assert_int_equal(attributes.type, cudaMemoryTypeDevice);
    OK(cudaPointerGetAttributes(&attributes, pinned));
    assert_int_equal(attributes.type, cudaMemoryTypeHost);
    OK(cudaPointerGetAttributes(&attributes, host));
    assert_int_equal(attributes.type, cudaMemoryTypeUnregistered);
    assert_int_equal(cudaMemcpy(p, host, 10, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpyAsync(host, p, 10, cudaMemcpyHostToDevice, s),
                     cudaErrorInvalidValue);
    assert_int_equal(cudaMemsetAsync(host, 0, 10, s), cudaErrorInvalidValue);
    assert_int_equal(cudaMalloc(&pinned, (size_t)3 << 30), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    OK(cudaGetLastError());
    OK(cudaFreeHost(pinned));
    assert_int_equal(cudaFreeHost(host), cudaErrorInvalidValue);
    (void)cudaGetLastError();
    OK(cudaFree(p));
    OK(cudaFree(NULL));
    OK(cudaStreamDestroy(s));
    assert_int_equal(emulated_live_bytes(), before);
}

static void count(void *data)
{
    ++*(int *)data;
}

static void memory_free_waits_for_device(void **state)
{
    cudaStream_t s = new_stream();
    float *x = new_memory(400);
    int n = 0;

    (void)state;
    launch_fill(100, 1.0f, x, s);
    OK(cudaLaunchHostFunc(s, count, &n));
    OK(cudaFree(x));
    assert_int_equal(n, 1);
    OK(cudaStreamDestroy(s));
}

static void memory_of_another_device_is_rejected(void **state)
{
    char *p = new_memory(64), *q;
    cudaStream_t s;

    (void)state;
    OK(cudaSetDevice(1));
    s = new_stream();
    q = new_memory(64);
    assert_int_equal(cudaMemcpyAsync(q, p, 64, cudaMemcpyDefault, s), cudaErrorInvalidValue);
    assert_int_equal(cudaSetDevice(2), cudaErrorInvalidDevice);
    (void)cudaGetLastError();
    OK(cudaStreamDestroy(s));
    OK(cudaFree(q));
    OK(cudaFree(p)); /* from any device */
    OK(cudaSetDevice(0));
}

/* ---- undefined behaviour ---- */

static void host_touches_device_memory(int argument)
{
    cudaStream_t s = new_stream();
    float *x = new_memory(400);

    (void)argument;
    launch_fill(100, 1.0f, x, s);
    OK(cudaStreamSynchronize(s));
    ((volatile float *)x)[3] = 1.0f;
}
static void free_twice(int argument)
{
    void *p = new_memory(16);

    (void)argument;
    OK(cudaFree(p));
    OK(cudaFree(p));
}
static void use_after_free(int argument)
{
    cudaStream_t s = new_stream();
    float *x = new_memory(400);

    (void)argument;
    OK(cudaFree(x));
    (void)new_memory(400); /* prevents the next allocation from using the same address */
    launch_fill(100, 1.0f, x, s);
    OK(cudaStreamSynchronize(s));
}
static void copy_too_much(int argument)
{
    char host[65];

    (void)argument;
    OK(cudaMemcpy(host, new_memory(64), 65, cudaMemcpyDeviceToHost));
}
static void memory_of_another_device(int argument)
{
    float *x = new_memory(400);
    cudaStream_t s;

    (void)argument;
    OK(cudaSetDevice(1));
    s = new_stream();
    launch_fill(100, 1.0f, x, s);
    OK(cudaStreamSynchronize(s));
}
static void stream_of_another_device(int argument)
{
    cudaStream_t s = new_stream();

    (void)argument;
    OK(cudaSetDevice(1));
    launch_fill(100, 1.0f, new_memory(400), s);
}
static void default_stream(int argument)
{
    (void)argument;
    launch_fill(100, 1.0f, new_memory(400), NULL);
}
static void host_function_calls_cuda(void *data)
{
    (void)data;
    (void)cudaDeviceSynchronize();
}
static void cuda_in_host_function(int argument)
{
    cudaStream_t s = new_stream();

    (void)argument;
    OK(cudaLaunchHostFunc(s, host_function_calls_cuda, NULL));
    OK(cudaStreamSynchronize(s));
}

static void invalid_host_code_ends_process_with_reason(void **state)
{
    static const struct {
        const char *scene, *says, *setting;
    } wrong[] = {
        { "host_touches_device_memory", "code of the host touched", NULL },
        { "free_twice", "freed already", NULL },
        { "use_after_free", "fill<float, 2>) touched", NULL },
        { "copy_too_much", "65 bytes at", NULL },
        { "memory_of_another_device", "only kernels and copies of that device may", NULL },
        { "stream_of_another_device", "a stream of device 0, and the current device is 1", NULL },
        { "default_stream", "the default stream is not emulated", NULL },
        { "cuda_in_host_function", "a host function: it calls CUDA", NULL },
        { "call_runtime", "EMULATED_GPUS: 'many'", "EMULATED_GPUS=many" },
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        expect_death(wrong[i].scene, 0, wrong[i].setting, wrong[i].says);
}

/* ---- settings ---- */

static void call_runtime(int argument)
{
    int n;

    (void)argument;
    OK(cudaGetDeviceCount(&n));
}

static void driver_too_old(int argument)
{
    int n = -1;
    void *p;

    (void)argument;
    assert_int_equal(cudaGetDeviceCount(&n), cudaErrorInsufficientDriver);
    assert_int_equal(n, 0);
    assert_int_equal(cudaMalloc(&p, 1), cudaErrorInsufficientDriver);
    OK(cudaDriverGetVersion(&n));
    assert_int_equal(n, 12040);
    OK(cudaRuntimeGetVersion(&n));
    assert_int_equal(n, 13000);
}

static void no_device(int argument)
{
    int n = -1;

    (void)argument;
    assert_int_equal(cudaGetDeviceCount(&n), cudaErrorNoDevice);
    assert_int_equal(n, 0);
    assert_int_equal(cudaSetDevice(0), cudaErrorNoDevice);
}

static void three_devices(int argument)
{
    struct cudaDeviceProp properties;
    char id[16];
    int n, value;

    (void)argument;
    OK(cudaGetDeviceCount(&n));
    assert_int_equal(n, 3);
    OK(cudaSetDevice(2));
    OK(cudaGetDevice(&n));
    assert_int_equal(n, 2);
    OK(cudaGetDeviceProperties(&properties, 2));
    assert_string_equal(properties.name, "emulated GPU");
    assert_int_equal(properties.multiProcessorCount, 132);
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 2));
    assert_int_equal(value, 9);
    OK(cudaDeviceGetPCIBusId(id, sizeof(id), 2));
    assert_string_equal(id, "0000:03:00.0");
}

static void limited_memory(int argument)
{
    void *p, *q;

    (void)argument;
    p = new_memory(600000);
    assert_int_equal(cudaMalloc(&q, 600000), cudaErrorMemoryAllocation);
    OK(cudaFree(p));
    q = new_memory(600000);
    OK(cudaFree(q));
}

/* The second launch fails; no later work runs, and every call returns the error. */
static void launch_fails(int argument)
{
    const float one = 1.0f;
    cudaStream_t s = new_stream(), other;
    float *x = new_floats(1, &one), *y = new_floats(1, &one);
    cudaEvent_t e = new_event();
    void *p;

    (void)argument;
    launch_axpy(1, 1.0f, x, y, s);
    launch_axpy(1, 1.0f, x, y, s);
    launch_axpy(1, 1.0f, x, y, s);
    OK(cudaEventRecord(e, s));
    OK(cudaGetLastError());
    assert_int_equal(cudaStreamSynchronize(s), cudaErrorIllegalAddress);
    assert_int_equal(cudaEventQuery(e), cudaErrorIllegalAddress);
    assert_int_equal(cudaMalloc(&p, 16), cudaErrorIllegalAddress);
    assert_int_equal(cudaFree(x), cudaErrorIllegalAddress);
    launch_axpy(1, 1.0f, x, y, s);
    assert_int_equal(cudaGetLastError(), cudaErrorIllegalAddress);
    assert_int_equal(cudaGetLastError(), cudaErrorIllegalAddress);
    assert_int_equal(cudaStreamDestroy(s), cudaErrorIllegalAddress);
    OK(cudaSetDevice(1)); /* the other device works */
    other = new_stream();
    OK(cudaStreamSynchronize(other));
    OK(cudaStreamDestroy(other));
}

static void launch_hangs(int argument)
{
    cudaStream_t s = new_stream();
    float *x = new_memory(400);
    int i;

    (void)argument;
    launch_fill(100, 1.0f, x, s);
    for (i = 0; i < 100; i++)
        assert_int_equal(cudaStreamQuery(s), cudaErrorNotReady);
    _exit(0); /* x is still in use */
}

static void allocation_fails_once(int argument)
{
    void *p, *q;

    (void)argument;
    p = new_memory(16);
    assert_int_equal(cudaMalloc(&q, 16), cudaErrorMemoryAllocation);
    q = new_memory(16);
    OK(cudaFree(p));
    OK(cudaFree(q));
}

static void leak_memory(int argument)
{
    (void)argument;
    (void)new_memory(1000);
}

static void environment_settings_configure_devices(void **state)
{
    (void)state;
    expect_life("driver_too_old", 0, "EMULATED_DRIVER=12040");
    expect_life("no_device", 0, "EMULATED_GPUS=0");
    expect_life("three_devices", 0, "EMULATED_GPUS=3");
    expect_life("limited_memory", 0, "EMULATED_MEMORY=1000000");
}

static void fault_settings_inject_faults_at_given_call(void **state)
{
    (void)state;
    expect_life("launch_fails", 0, "EMULATED_FAULT=launch@2");
    expect_life("launch_hangs", 0, "EMULATED_FAULT=hang@1");
    expect_life("allocation_fails_once", 0, "EMULATED_FAULT=malloc@2");
}

static void leaked_memory_is_reported_at_exit(void **state)
{
    char text[1024];

    (void)state;
    assert_true(scene_ends_well("leak_memory", 0, NULL, text, sizeof(text)));
    assert_string_equal(text, "emulated GPU: 1024 bytes of device memory were not freed\n");
}

static const struct scene scenes[] = {
    { "host_touches_device_memory", host_touches_device_memory },
    { "free_twice", free_twice },
    { "use_after_free", use_after_free },
    { "copy_too_much", copy_too_much },
    { "memory_of_another_device", memory_of_another_device },
    { "stream_of_another_device", stream_of_another_device },
    { "default_stream", default_stream },
    { "cuda_in_host_function", cuda_in_host_function },
    { "call_runtime", call_runtime },
    { "driver_too_old", driver_too_old },
    { "no_device", no_device },
    { "three_devices", three_devices },
    { "limited_memory", limited_memory },
    { "launch_fails", launch_fails },
    { "launch_hangs", launch_hangs },
    { "allocation_fails_once", allocation_fails_once },
    { "leak_memory", leak_memory },
};

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_calls_with_invalid_arguments_fail),
        cmocka_unit_test(memory_free_waits_for_device),
        cmocka_unit_test(memory_of_another_device_is_rejected),
        cmocka_unit_test(invalid_host_code_ends_process_with_reason),
        cmocka_unit_test(environment_settings_configure_devices),
        cmocka_unit_test(fault_settings_inject_faults_at_given_call),
        cmocka_unit_test(leaked_memory_is_reported_at_exit),
    };

    scenes_play(scenes, sizeof(scenes) / sizeof(scenes[0]), argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
