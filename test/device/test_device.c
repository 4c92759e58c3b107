#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/err.h"
#include "base/fault.h"
#include "device/device.h"
#include "harness/lacking.h"

static uint32_t cores_by_libc(void)
{
    cpu_set_t set;

    assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
    return (uint32_t)CPU_COUNT(&set);
}

static void cpu_spec_gives_one_pinned_slot_per_core(void **state)
{
    struct device d[DEVICE_MAX];
    struct err err = { 0 };
    uint32_t n = 0, i, k;

    (void)state;
    assert_int_equal(device_mask(), cores_by_libc());
    assert_in_range(device_cores(), 1, device_mask()); /* a processor quota limits them */
    assert_int_equal(device_parse("cpu", 0, d, &n, &err), 0);
    assert_int_equal(n, device_cores());
    for (i = 0; i < n; i++) {
        assert_int_equal(d[i].kind, DEVICE_CPU);
        assert_int_equal(d[i].index, i);
        assert_true(d[i].core >= 0);
        for (k = 0; k < i; k++)
            assert_int_not_equal(d[i].core, d[k].core);
    }
}

static void auto_spec_without_plugin_gives_cpu(void **state)
{
    struct device a[DEVICE_MAX], b[DEVICE_MAX];
    struct err err = { 0 };
    uint32_t n_a = 0, n_b = 0;

    (void)state;
    assert_int_equal(device_parse("auto", 1, a, &n_a, &err), 0);
    assert_int_equal(device_parse("cpu", 1, b, &n_b, &err), 0);
    assert_int_equal(n_a, n_b);
    assert_memory_equal(a, b, n_a * sizeof(*a));
}

static void first_core_rotates_core_assignment(void **state)
{
    struct device a[DEVICE_MAX], b[DEVICE_MAX];
    struct err err = { 0 };
    uint32_t n = 0, i;

    (void)state;
    assert_int_equal(device_parse("cpu", 0, a, &n, &err), 0);
    assert_int_equal(device_parse("cpu", 1, b, &n, &err), 0);
    for (i = 0; i < n; i++) {
        assert_int_equal(b[i].index, i);
        assert_int_equal(b[i].core, a[(i + 1) % n].core);
    }
    assert_int_equal(device_parse("cpu:1", UINT32_MAX, b, &n, &err), 0);
    assert_int_equal(b[0].core, a[UINT32_MAX % device_cores()].core);
}

static void slots_beyond_core_count_are_not_pinned(void **state)
{
    struct device d[DEVICE_MAX];
    struct err err = { 0 };
    uint32_t n = 0, i, want = device_cores() + 1;
    char spec[32];

    (void)state;
    if (want > DEVICE_MAX)
        skip_lacking("the processor has more cores than a task has devices");
    snprintf(spec, sizeof(spec), "cpu:%u", want);
    assert_int_equal(device_parse(spec, 0, d, &n, &err), 0);
    assert_int_equal(n, want);
    for (i = 0; i < n; i++) {
        assert_int_equal(d[i].index, i);
        assert_int_equal(d[i].core, -1);
        assert_int_equal(device_enter(&d[i], &err), 0);
    }
    /* device_enter() did not change the process mask */
    assert_int_equal(cores_by_libc(), want - 1);
}

static void invalid_spec_is_rejected_with_expected_forms(void **state)
{
    static const char *const bad[] = {
        "",         "gpu",     "cpu:",     "cpu:0",      "cpu:257",    "cpu:-1",  "cpu:1x",
        "cpus",     "cpu2",    "CPU",      "cuda:",      "cuda:x",     "cuda:0,", "cuda:,1",
        "cuda:1,1", "cuda:-1", "cuda:256", "cuda:00001", "cuda:12345678901234567890", "cudax",
        "autos",    " cpu",    "cpu:99999999999999999999",
    };
    struct device d[DEVICE_MAX];
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(bad); i++) {
        struct err err = { 0 };
        uint32_t n = 77;

        assert_int_equal(device_parse(bad[i], 0, d, &n, &err), ERR_INPUT);
        assert_int_equal(n, 77);
        assert_non_null(strstr(err.text, "expected auto, cpu, cpu:N"));
        assert_non_null(strstr(err.text, bad[i]));
    }
}

static void cuda_spec_without_plugin_is_rejected(void **state)
{
    static const char *const specs[] = { "cuda", "cuda:0", "cuda:3,1" };
    struct device d[DEVICE_MAX];
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(specs); i++) {
        struct err err = { 0 };
        uint32_t n = 77;

        assert_int_equal(device_parse(specs[i], 0, d, &n, &err), ERR_DEVICE);
        assert_int_equal(n, 77);
        assert_non_null(strstr(err.text, "trainerd-cuda.so"));
        assert_non_null(strstr(err.text, TRAINERD_VERSION));
        assert_non_null(strstr(err.text, "or use 'cpu'"));
    }
}

/* Runs a copy of this program in its own folder, beside a file with the name of the plugin. */
static int run_beside_plugin(const char *library, const char *mode, char *said, size_t n)
{
    char dir[] = "/tmp/trainerd-device-XXXXXX", command[1024], self[512];
    ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
    FILE *out;
    size_t got;
    int status;

    assert_true(len > 0);
    self[len] = '\0';
    assert_non_null(mkdtemp(dir));
    snprintf(command, sizeof(command),
             "cp '%s' %s/program && cp '%s' %s/trainerd-cuda.so && ASAN_OPTIONS=detect_leaks=0 "
             "%s/program --parse %s",
             self, dir, library, dir, dir, mode);
    out = popen(command, "r");
    assert_non_null(out);
    got = fread(said, 1, n - 1, out);
    said[got] = '\0';
    status = pclose(out);
    snprintf(command, sizeof(command), "rm -r %s", dir);
    assert_int_equal(system(command), 0);
    return status;
}

static void library_without_plugin_symbol_is_rejected(void **state)
{
    void *libm = dlopen("libm.so.6", RTLD_NOW);
    char said[4096];
    Dl_info info;

    (void)state;
    assert_non_null(libm);
    assert_true(dladdr(dlsym(libm, "cos"), &info) != 0);
    assert_int_equal(run_beside_plugin(info.dli_fname, "cuda", said, sizeof(said)), 0);
    dlclose(libm);
    assert_non_null(strstr(said, "ERR_DEVICE"));
    assert_non_null(strstr(said, "lacks the symbol trainerd_cuda_plugin"));
    assert_non_null(strstr(said, TRAINERD_VERSION));
}

static void unloadable_plugin_is_reported_with_loader_message(void **state)
{
    char said[4096];

    (void)state;
    assert_int_equal(run_beside_plugin("/proc/self/status", "cuda", said, sizeof(said)), 0);
    assert_non_null(strstr(said, "ERR_DEVICE"));
    assert_non_null(strstr(said, "trainerd-cuda.so: ")); /* the path, and the reason */
    /* If a driver exists, "auto" must not silently fall back to CPUs; without one, the plugin is
     * not loaded. */
    assert_int_equal(run_beside_plugin("/proc/self/status", "auto", said, sizeof(said)), 0);
    assert_non_null(strstr(said, device_has_driver() ? "ERR_DEVICE" : "devices: "));
}

/* Run in the child process of the two tests above. */
static int parse_and_print(const char *spec)
{
    struct device d[DEVICE_MAX];
    struct err err = { 0 };
    uint32_t n = 0;
    int rc = device_parse(spec, 0, d, &n, &err);

    if (rc < 0)
        printf("%s: %s\n", err_name(rc), err.text);
    else
        printf("devices: %u\n", n);
    return 0;
}

static void device_name_is_kind_and_index(void **state)
{
    struct device cpu = { .kind = DEVICE_CPU, .index = 12 }, gpu = { .kind = DEVICE_CUDA,
                                                                     .index = 1 };
    char name[32];

    (void)state;
    device_name(&cpu, name, sizeof(name));
    assert_string_equal(name, "cpu:12");
    device_name(&gpu, name, sizeof(name));
    assert_string_equal(name, "cuda:1");
    device_name(&gpu, name, 4);
    assert_string_equal(name, "cud");
}

static void device_enter_pins_thread_and_reports_lost_core(void **state)
{
    struct device d[DEVICE_MAX], lost = { .kind = DEVICE_CPU, .index = 3, .core = 4095 };
    struct err err = { 0 };
    cpu_set_t before, now;
    uint32_t n = 0;

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    assert_int_equal(device_parse("cpu", 0, d, &n, &err), 0);
    assert_int_equal(device_enter(&d[n - 1], &err), 0);
    assert_int_equal(sched_getaffinity(0, sizeof(now), &now), 0);
    assert_int_equal(CPU_COUNT(&now), 1);
    assert_true(CPU_ISSET((size_t)d[n - 1].core, &now));
    assert_int_equal(device_enter(&lost, &err), ERR_DEVICE);
    assert_non_null(strstr(err.text, "cpu:3"));
    assert_non_null(strstr(err.text, "4095"));
    assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
}

static cpu_set_t pinned, roaming;

static void *pin_and_roam(void *arg)
{
    (void)device_enter(arg, NULL);
    (void)sched_getaffinity(0, sizeof(pinned), &pinned);
    device_unpin();
    (void)sched_getaffinity(0, sizeof(roaming), &roaming);
    return NULL;
}

static void device_roam_restores_process_mask(void **state)
{
    struct device d[DEVICE_MAX];
    struct err err = { 0 };
    pthread_t thread;
    uint32_t n = 0;

    (void)state;
    assert_int_equal(device_parse("cpu", 0, d, &n, &err), 0);
    assert_int_equal(pthread_create(&thread, NULL, pin_and_roam, &d[0]), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(CPU_COUNT(&pinned), 1);
    assert_int_equal(CPU_COUNT(&roaming), n);
}

static void device_mem_is_zeroed_and_aligned_to_pages(void **state)
{
    static const size_t sizes[] = { 0, 1, 4096, 100000, 3u << 20, (4u << 20) + 5 };
    size_t page = (size_t)sysconf(_SC_PAGESIZE), i, k;
    int shared;

    (void)state;
    for (i = 0; i < COUNT_OF(sizes); i++) {
        for (shared = 0; shared < 2; shared++) {
            struct device_mem m;
            struct err err = { 0 };
            unsigned char *p;

            assert_int_equal(device_mem_open(&m, sizes[i], shared != 0, &err), 0);
            assert_non_null(m.base);
            assert_true(m.bytes >= sizes[i] && m.bytes >= page && m.bytes < sizes[i] + 2 * page);
            assert_int_equal(m.bytes % page, 0);
            assert_int_equal((uintptr_t)m.base % (sizes[i] >= 2u << 20 ? 2u << 20 : page), 0);
            assert_int_equal(m.fd >= 0, shared);
            p = m.base;
            for (k = 0; k < m.bytes; k += 1000)
                assert_int_equal(p[k], 0);
            p[0] = p[m.bytes - 1] = 1;
            device_mem_close(&m);
            assert_null(m.base);
            assert_int_equal(m.fd, -1);
            device_mem_close(&m);
        }
    }
}

static void shared_region_is_visible_to_other_process(void **state)
{
    struct device_mem m;
    struct err err = { 0 };
    volatile uint32_t *p;
    int status;
    pid_t child;

    (void)state;
    assert_int_equal(device_mem_open(&m, 1 << 16, true, &err), 0);
    assert_int_equal(fcntl(m.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    p = m.base;
    p[7] = 42;
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        uint32_t *theirs = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, m.fd, 0);

        if (theirs == MAP_FAILED || theirs[7] != 42)
            _exit(1);
        theirs[8] = 43;
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(p[8], 43);
    device_mem_close(&m);
}

static void impossible_size_is_out_of_memory_and_leaves_region_closed(void **state)
{
    static const size_t sizes[] = { SIZE_MAX, SIZE_MAX / 2, (size_t)1 << 60 };
    size_t i;
    int shared;

    (void)state;
    for (i = 0; i < COUNT_OF(sizes); i++) {
        for (shared = 0; shared < 2; shared++) {
            struct device_mem m = { .fd = 5 };
            struct err err = { 0 };

            assert_int_equal(device_mem_open(&m, sizes[i], shared != 0, &err), ERR_NOMEM);
            assert_null(m.base);
            assert_int_equal(m.fd, -1);
            assert_non_null(strstr(err.text, "memory"));
        }
    }
}

static void zeroed_struct_can_be_closed_without_closing_fd_0(void **state)
{
    struct device_mem m = { 0 };
    int input = fcntl(0, F_GETFD) < 0 ? open("/dev/null", O_RDONLY) : 0;

    (void)state;
    assert_int_equal(input, 0);
    device_mem_close(&m);
    assert_true(fcntl(0, F_GETFD) >= 0);
}

static void device_mem_open_under_fault_fails(void **state)
{
    struct device_mem m;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(fault_arm("device_mem@1", &err), 0);
    assert_int_equal(device_mem_open(&m, 100, true, &err), ERR_NOMEM);
    assert_null(m.base);
    assert_int_equal(fault_arm(NULL, &err), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpu_spec_gives_one_pinned_slot_per_core),
        cmocka_unit_test(auto_spec_without_plugin_gives_cpu),
        cmocka_unit_test(first_core_rotates_core_assignment),
        cmocka_unit_test(slots_beyond_core_count_are_not_pinned),
        cmocka_unit_test(invalid_spec_is_rejected_with_expected_forms),
        cmocka_unit_test(cuda_spec_without_plugin_is_rejected),
        cmocka_unit_test(library_without_plugin_symbol_is_rejected),
        cmocka_unit_test(unloadable_plugin_is_reported_with_loader_message),
        cmocka_unit_test(device_name_is_kind_and_index),
        cmocka_unit_test(device_enter_pins_thread_and_reports_lost_core),
        cmocka_unit_test(device_roam_restores_process_mask),
        cmocka_unit_test(device_mem_is_zeroed_and_aligned_to_pages),
        cmocka_unit_test(shared_region_is_visible_to_other_process),
        cmocka_unit_test(impossible_size_is_out_of_memory_and_leaves_region_closed),
        cmocka_unit_test(zeroed_struct_can_be_closed_without_closing_fd_0),
        cmocka_unit_test(device_mem_open_under_fault_fails),
    };

    if (argc == 3 && strcmp(argv[1], "--parse") == 0)
        return parse_and_print(argv[2]);
    return cmocka_run_group_tests_name("device/device", tests, NULL, NULL);
}
