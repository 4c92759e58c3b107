/* test_idle.c - idle_release_memory() makes the process smaller and changes no byte of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/idle.h"

enum { TABLE_BYTES = 4 << 20 };

/* A table without relocations: a part of the file of this program. Not static, and larger than any other segment. */
extern const char table[], table_end[];
__asm__(".section .rodata\n"
        ".balign 4096\n"
        ".globl table\ntable:\n.fill 4194304, 1, 0x5a\n"
        ".globl table_end\ntable_end:\n.previous\n");
static int written = 7;                          /* in a segment with write permission */
static int *const volatile relocated = &written; /* in a segment that is read-only after relocation */

static size_t resident_pages(void)
{
    unsigned long all = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lu %lu", &all, &resident), 2);
    fclose(f);
    return resident;
}

static uint64_t sum_of_table(void)
{
    uint64_t sum = 0;

    for (const char *p = table; p < table_end; p++)
        sum += (unsigned char)*p;
    return sum;
}

static void release_unmaps_the_pages_of_a_read_only_table(void **state)
{
    uint64_t sum = sum_of_table();
    size_t before = resident_pages();

    (void)state;
    idle_release_memory();
    assert_true(resident_pages() + TABLE_BYTES / 4096 <= before);
    assert_int_equal(sum_of_table(), sum);
    assert_int_equal(sum, (uint64_t)TABLE_BYTES * 0x5a);
}

static void release_keeps_written_and_relocated_data(void **state)
{
    (void)state;
    written = 8;
    idle_release_memory();
    assert_int_equal(written, 8);
    assert_ptr_equal(relocated, &written);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(release_unmaps_the_pages_of_a_read_only_table),
        cmocka_unit_test(release_keeps_written_and_relocated_data),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
