/* The ring of a channel, with both ends in one process: content, space, wake-ups, and everything that another
 * process can write to its counters. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"
#include "comm/ring.h"

struct pair {
    struct ring writer, reader;
    int fd;
};

static void open_pair(struct pair *p)
{
    struct err err;

    memset(p, 0, sizeof(*p));
    if (ring_make(&p->writer, &p->fd, &err) < 0 || ring_map(p->fd, &p->reader, &err) < 0)
        fail_msg("%s", err.text);
}

static void close_pair(struct pair *p)
{
    ring_close(&p->writer);
    ring_close(&p->reader);
    ring_close(&p->reader); /* idempotent */
    close(p->fd);
}

/* Byte i of the stream. */
static uint8_t byte_of(uint64_t i)
{
    return (uint8_t)((i * 0x9e3779b97f4a7c15u) >> 56);
}

/* ---- content ---- */

static void bytes_arrive_in_order_across_the_end_of_the_ring(void **state)
{
    uint8_t *data = malloc(2 * RING_BYTES);
    uint64_t sent = 0, got = 0;
    uint32_t random = 1;
    struct pair p;

    (void)state;
    assert_non_null(data);
    open_pair(&p);
    while (got < 8 * (uint64_t)RING_BYTES) {
        size_t n;
        ssize_t done;

        random = random * 1664525 + 1013904223;
        n = random % RING_BYTES;
        for (size_t i = 0; i < n; i++)
            data[i] = byte_of(sent + i);
        done = ring_write(&p.writer, data, n);
        assert_true(done >= 0 && (size_t)done <= n && sent + (size_t)done - got <= RING_BYTES);
        sent += (uint64_t)done;
        (void)ring_publish(&p.writer);
        done = ring_read(&p.reader, data, (random >> 8) % (2 * RING_BYTES), (random & 1) != 0);
        assert_true(done >= 0 && got + (uint64_t)done <= sent);
        for (size_t i = 0; i < (size_t)done; i++)
            if (data[i] != byte_of(got + i))
                fail_msg("byte %llu", (unsigned long long)(got + i));
        got += (uint64_t)done;
        (void)ring_publish(&p.reader);
    }
    close_pair(&p);
    free(data);
}

static void bytes_and_space_exist_for_the_other_end_when_they_are_published(void **state)
{
    static uint8_t data[RING_BYTES + 1];
    struct pair p;

    (void)state;
    open_pair(&p);
    assert_int_equal(ring_read(&p.reader, data, 1, false), 0);
    assert_int_equal(ring_write(&p.writer, data, sizeof(data)), RING_BYTES);
    assert_int_equal(ring_write(&p.writer, data, 1), 0);
    assert_int_equal(ring_read(&p.reader, data, 1, false), 0);
    (void)ring_publish(&p.writer);
    assert_int_equal(ring_read(&p.reader, data, 100, false), 100);
    assert_int_equal(ring_write(&p.writer, data, 1), 0);
    (void)ring_publish(&p.reader);
    assert_int_equal(ring_write(&p.writer, data, 1000), 100);
    close_pair(&p);
}

/* ---- wake-ups ---- */

static void end_that_sleeps_is_woken_once_and_when_it_has_what_it_waits_for(void **state)
{
    static uint8_t data[RING_BYTES];
    struct pair p;

    (void)state;
    open_pair(&p);
    (void)ring_write(&p.writer, data, 10);
    assert_false(ring_publish(&p.writer)); /* nobody sleeps */
    assert_true(ring_wait(&p.reader, 10)); /* they are there already */
    assert_false(ring_wait(&p.reader, 100));
    (void)ring_write(&p.writer, data, 89);
    assert_false(ring_publish(&p.writer));
    (void)ring_write(&p.writer, data, 1);
    assert_true(ring_publish(&p.writer));
    (void)ring_write(&p.writer, data, 1);
    assert_false(ring_publish(&p.writer)); /* once */

    (void)ring_write(&p.writer, data, sizeof(data));
    (void)ring_publish(&p.writer); /* full */
    assert_false(ring_wait(&p.writer, RING_BYTES));
    (void)ring_read(&p.reader, data, RING_BYTES - 1, false);
    assert_false(ring_publish(&p.reader));
    (void)ring_read(&p.reader, data, 1, false);
    assert_true(ring_publish(&p.reader));
    assert_true(ring_wait(&p.writer, RING_BYTES));
    close_pair(&p);
}

/* ---- invalid counters ---- */

static void counter_that_the_other_end_cannot_have_is_refused(void **state)
{
    static const struct {
        bool of_reader; /* who writes the counter */
        uint64_t value; /* both counters were 100 before */
        bool is_valid;
    } rows[] = {
        { false, 100, true },
        { false, 100 + RING_BYTES, true },
        { false, 101 + RING_BYTES, false },
        { false, 99, false },
        { false, UINT64_MAX, false },
        { true, 100, true },
        { true, 99, false },
        { true, 100 + RING_BYTES, true },
        { true, 101 + RING_BYTES, false }, /* more than was written */
        { true, UINT64_MAX, false },
    };
    static uint8_t data[RING_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct pair p;
        struct ring *victim;
        ssize_t n;

        open_pair(&p);
        (void)ring_write(&p.writer, data, 100);
        (void)ring_publish(&p.writer);
        (void)ring_read(&p.reader, data, 100, false);
        (void)ring_publish(&p.reader);
        assert_false(ring_wait(&p.reader, 1)); /* both ends know the counters of the other */
        assert_true(ring_wait(&p.writer, RING_BYTES));
        victim = rows[i].of_reader ? &p.writer : &p.reader;
        atomic_store(rows[i].of_reader ? &p.reader.page->read : &p.writer.page->written,
                     rows[i].value);
        if (rows[i].of_reader) /* the writer looks at the counter when the space that it knows is not enough */
            assert_int_equal(ring_write(victim, data, RING_BYTES), RING_BYTES);
        n = rows[i].of_reader ? ring_write(victim, data, RING_BYTES)
                              : ring_read(victim, data, RING_BYTES, false);
        if (rows[i].is_valid ? n != (ssize_t)(rows[i].value - 100) : n != -1)
            fail_msg("row %zu: %zd", i, n);
        if (!rows[i].is_valid)
            assert_true(ring_wait(victim, 1)); /* does not sleep, but reports it */
        close_pair(&p);
    }
}

static void memory_that_can_shrink_or_has_another_size_is_refused(void **state)
{
    static const struct {
        off_t bytes;
        int seals;
    } rows[] = {
        { sizeof(struct ring_page), 0 },
        { sizeof(struct ring_page), F_SEAL_GROW },
        { sizeof(struct ring_page) - 1, F_SEAL_SHRINK },
        { sizeof(struct ring_page) + 4096, F_SEAL_SHRINK },
        { 0, F_SEAL_SHRINK },
    };
    struct ring r = { 0 };
    struct err err;
    int fds[2];

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        assert_true(fd >= 0 && ftruncate(fd, rows[i].bytes) == 0 &&
                    fcntl(fd, F_ADD_SEALS, rows[i].seals) == 0);
        assert_int_equal(ring_map(fd, &r, &err), ERR_PEER);
        assert_non_null(strstr(err.text, "is not a ring of 1052672 bytes"));
        close(fd);
    }
    assert_int_equal(pipe(fds), 0); /* not memory */
    assert_int_equal(ring_map(fds[0], &r, &err), ERR_PEER);
    close(fds[0]);
    close(fds[1]);
    assert_null(r.page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_arrive_in_order_across_the_end_of_the_ring),
        cmocka_unit_test(bytes_and_space_exist_for_the_other_end_when_they_are_published),
        cmocka_unit_test(end_that_sleeps_is_woken_once_and_when_it_has_what_it_waits_for),
        cmocka_unit_test(counter_that_the_other_end_cannot_have_is_refused),
        cmocka_unit_test(memory_that_can_shrink_or_has_another_size_is_refused),
    };

    return cmocka_run_group_tests_name("comm/ring", tests, NULL, NULL);
}
