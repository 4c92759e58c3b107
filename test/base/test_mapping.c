#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/mapping.h"
#include "data/kit.h"

enum { BYTES = 3 * 4096 };

struct mapped {
    char *folder;
    int fd;
    const uint8_t *at;
};

/* Not a cmocka fixture: cmocka installs its own SIGBUS handler around each fixture. */
static struct mapped *open_mapped(void)
{
    struct mapped *m = calloc(1, sizeof(*m));
    uint8_t *bytes = malloc(BYTES);
    char *path;

    m->folder = kit_folder();
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 251);
    kit_write(m->folder, "x", bytes, BYTES);
    path = fs_join(m->folder, "x");
    m->fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(m->fd >= 0);
    m->at = mapping_new(m->fd, BYTES);
    assert_non_null(m->at);
    free(bytes);
    free(path);
    return m;
}

static void close_mapped(struct mapped *m)
{
    mapping_free(m->at, BYTES);
    close(m->fd);
    kit_remove(m->folder);
    free(m);
}

static void mapping_copy_returns_the_bytes_of_the_file(void **state)
{
    struct mapped *m = open_mapped();
    uint8_t out[5000];

    (void)state;
    assert_true(mapping_copy(out, m->at + 4000, sizeof(out)));
    for (size_t i = 0; i < sizeof(out); i++)
        assert_int_equal(out[i], (uint8_t)((4000 + i) * 7 + (4000 + i) / 251));
    close_mapped(m);
}

/* The first page is still readable. Fails twice, to test that the handler works again. */
static void mapping_copy_of_a_truncated_file_fails_and_the_next_succeeds(void **state)
{
    struct mapped *m = open_mapped();
    uint8_t out[6000];

    (void)state;
    assert_int_equal(ftruncate(m->fd, 4096), 0);
    for (int i = 0; i < 2; i++) {
        assert_false(mapping_copy(out, m->at + 8192, 100));
        assert_false(mapping_copy(out, m->at + 1000, sizeof(out)));
        assert_true(mapping_copy(out, m->at + 1000, 3096));
        assert_int_equal(out[5], (uint8_t)(1005 * 7 + 1005 / 251));
    }
    close_mapped(m);
}

static void *copy_in_thread(void *arg)
{
    struct mapped *m = arg;
    uint8_t out[100];

    return mapping_copy(out, m->at + 8192, sizeof(out)) ? arg : NULL;
}

static void mapping_copy_with_blocked_signals_survives_truncation(void **state)
{
    struct mapped *m = open_mapped();
    sigset_t all, before;
    pthread_t thread;
    void *result = m;

    (void)state;
    assert_int_equal(ftruncate(m->fd, 4096), 0);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    assert_int_equal(pthread_create(&thread, NULL, copy_in_thread, m), 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_null(result);
    close_mapped(m);
}

/* A SIGBUS at an address outside the mappings has its default effect. */
static void bus_error_outside_a_mapping_terminates_the_process(void **state)
{
    struct mapped *m = open_mapped();
    int status, null = open("/dev/null", O_WRONLY);
    pid_t child;

    (void)state;
    assert_int_equal(ftruncate(m->fd, 4096), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(null, STDERR_FILENO);
        _exit(*(volatile const uint8_t *)(m->at + 8192) == 0 ? 0 : 0);
    }
    close(null);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close_mapped(m);
}

/* ---- plain pointers ---- */

static struct mapping *open_plain(const struct mapped *m)
{
    struct mapping *p = NULL;
    struct err err;

    if (mapping_open(m->fd, BYTES, "a file", &p, &err) < 0)
        fail_msg("%s", err.text);
    return p;
}

static void mapping_of_a_whole_file_has_its_bytes(void **state)
{
    struct mapped *m = open_mapped();
    struct mapping *p = open_plain(m);

    (void)state;
    assert_int_equal(mapping_bytes(p), BYTES);
    assert_int_equal(mapping_data(p)[8192], (uint8_t)(8192 * 7 + 8192 / 251));
    mapping_drop(p, mapping_data(p) + 1, 9000); /* read again from the file */
    assert_int_equal(mapping_data(p)[8192], (uint8_t)(8192 * 7 + 8192 / 251));
    assert_int_equal(mapping_check(p, NULL), 0);
    mapping_close(p);
    close_mapped(m);
}

/* Another mapping of an intact file stays intact, and its node of the list is reused afterwards. */
static void mapping_of_a_truncated_file_reads_zeros_and_reports_it(void **state)
{
    struct mapped *m = open_mapped(), *other = open_mapped();
    struct mapping *p = open_plain(m), *q = open_plain(other);
    struct err err;

    (void)state;
    assert_int_equal(ftruncate(m->fd, 4096), 0);
    assert_int_equal(mapping_data(p)[5], 35);
    assert_int_equal(mapping_data(p)[8192], 0);
    assert_int_equal(mapping_check(p, &err), ERR_IO);
    assert_non_null(strstr(err.text, "'a file' was truncated"));
    assert_int_equal(mapping_check(q, NULL), 0);
    assert_int_equal(ftruncate(m->fd, BYTES), 0); /* the original size, with the bytes lost */
    assert_int_equal(mapping_check(p, &err), ERR_IO);
    assert_non_null(strstr(err.text, "pages could not be read"));
    mapping_close(p);
    mapping_close(q);
    p = open_plain(other);
    assert_int_equal(mapping_check(p, NULL), 0);
    mapping_close(p);
    close_mapped(m);
    close_mapped(other);
}

static void *read_in_thread(void *arg)
{
    struct mapping *p = arg;

    mapping_enable_thread();
    return mapping_data(p)[8192] == 0 ? NULL : arg;
}

static void mapping_read_by_a_thread_with_blocked_signals_survives_truncation(void **state)
{
    struct mapped *m = open_mapped();
    struct mapping *p = open_plain(m);
    sigset_t all, before;
    pthread_t thread;
    void *result = m;

    (void)state;
    assert_int_equal(ftruncate(m->fd, 4096), 0);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    assert_int_equal(pthread_create(&thread, NULL, read_in_thread, p), 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_null(result);
    mapping_close(p);
    close_mapped(m);
}

static void mapping_of_an_empty_file_has_an_address(void **state)
{
    struct mapped *m = open_mapped();
    struct mapping *p;

    (void)state;
    assert_int_equal(mapping_open(m->fd, 0, "empty", &p, NULL), 0);
    assert_non_null(mapping_data(p));
    assert_int_equal(mapping_check(p, NULL), 0);
    mapping_drop(p, mapping_data(p), 0);
    mapping_close(p);
    close_mapped(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mapping_copy_returns_the_bytes_of_the_file),
        cmocka_unit_test(mapping_copy_of_a_truncated_file_fails_and_the_next_succeeds),
        cmocka_unit_test(mapping_copy_with_blocked_signals_survives_truncation),
        cmocka_unit_test(bus_error_outside_a_mapping_terminates_the_process),
        cmocka_unit_test(mapping_of_a_whole_file_has_its_bytes),
        cmocka_unit_test(mapping_of_a_truncated_file_reads_zeros_and_reports_it),
        cmocka_unit_test(mapping_read_by_a_thread_with_blocked_signals_survives_truncation),
        cmocka_unit_test(mapping_of_an_empty_file_has_an_address),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
