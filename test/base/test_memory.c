/* arena, vec, map */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/fault.h"
#include "base/map.h"
#include "base/vec.h"

static void arena_allocations_are_zeroed_and_aligned(void **state)
{
    static const unsigned char zeros[3000];
    struct arena a = { 0 };
    char *first = arena_strdup(&a, "kept"), *last = NULL;

    (void)state;
    for (size_t size = 0; size < 3000; size += 7) {
        char *p = arena_alloc(&a, size);

        assert_non_null(p);
        assert_ptr_not_equal(p, last);
        assert_int_equal((uintptr_t)p % 16, 0);
        assert_memory_equal(p, zeros, size);
        memset(p, 0xee, size); /* must not change another allocation */
        last = p;
    }
    assert_non_null(arena_alloc(&a, 5 << 20));
    assert_string_equal(first, "kept");
    assert_true(a.used > 5 << 20);
    arena_fini(&a);
    assert_null(a.blocks);
    assert_int_equal(a.used, 0);
    assert_non_null(arena_alloc(&a, 1));
    arena_fini(&a);
}

static void arena_copies_and_formats_strings(void **state)
{
    struct arena a = { 0 };

    (void)state;
    assert_string_equal(arena_strndup(&a, "abcdef", 3), "abc");
    assert_string_equal(arena_strndup(&a, "ab", 30), "ab");
    assert_string_equal(arena_printf(&a, "%s-%d", "rank", 12), "rank-12");
    arena_fini(&a);
}

static void allocation_of_an_impossible_size_fails(void **state)
{
    struct arena a = { 0 };
    VEC(uint64_t) xs = { 0 };

    (void)state;
    assert_null(arena_alloc(&a, SIZE_MAX));
    assert_null(arena_alloc(&a, SIZE_MAX - 20));
    assert_null(arena_array(&a, SIZE_MAX / 2, 3));
    assert_false(VEC_RESERVE(xs, SIZE_MAX / 4));
    assert_null(xs.at);
    fault_arm("mem@1+", NULL);
    assert_null(arena_alloc(&a, 10));
    assert_null(arena_strdup(&a, "x"));
    assert_false(VEC_PUSH(xs, 1));
    fault_arm(NULL, NULL);
    arena_fini(&a);
}

static void vec_push_keeps_all_elements(void **state)
{
    struct pair {
        int a;
        char b;
    };
    VEC(struct pair) pairs = { 0 };

    (void)state;
    for (int i = 0; i < 1000; i++)
        assert_true(VEC_PUSH(pairs, (struct pair){ i, (char)(i % 100) }));
    assert_int_equal(pairs.n, 1000);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(pairs.at[i].a, i);
        assert_int_equal(pairs.at[i].b, i % 100);
    }
    assert_true(VEC_RESERVE(pairs, 5000));
    assert_true(pairs.cap >= 5000);
    assert_int_equal(pairs.n, 1000);
    VEC_FINI(pairs);
    assert_null(pairs.at);
}

static void map_get_finds_inserted_keys_only(void **state)
{
    struct map m = { 0 };
    char key[64];
    uint64_t value;

    (void)state;
    assert_false(map_get(&m, "key-0", &value));
    for (uint64_t i = 0; i < 5000; i++) {
        snprintf(key, sizeof(key), "key-%lu", (unsigned long)i);
        assert_int_equal(map_put(&m, key, i * 3), MAP_NEW);
        memset(key, 'x', sizeof(key) - 1); /* keys are copied */
    }
    assert_int_equal(m.n, 5000);
    for (uint64_t i = 0; i < 10000; i++) {
        snprintf(key, sizeof(key), "key-%lu", (unsigned long)i);
        value = 77;
        assert_int_equal(map_get(&m, key, &value), i < 5000);
        assert_int_equal(value, i < 5000 ? i * 3 : 77);
    }
    assert_int_equal(map_put(&m, "key-4", 1), MAP_EXISTED);
    assert_true(map_get(&m, "key-4", &value));
    assert_int_equal(value, 12);
    map_fini(&m);
    assert_false(map_get(&m, "key-4", &value));
}

static void map_distinguishes_keys_with_a_common_prefix(void **state)
{
    struct map m = { 0 };
    char key[40] = "";
    uint64_t value;

    (void)state;
    for (size_t n = 0; n < 39; n++) { /* every length modulo the 8-byte words, including 0 */
        assert_int_equal(map_put(&m, key, n), MAP_NEW);
        key[n] = 'a';
    }
    memset(key, 0, sizeof(key));
    for (size_t n = 0; n < 39; n++) {
        assert_true(map_get(&m, key, &value));
        assert_int_equal(value, n);
        key[n] = 'a';
    }
    map_fini(&m);
}

static void map_put_out_of_memory_keeps_earlier_keys(void **state)
{
    struct map m = { 0 };
    uint64_t value;

    (void)state;
    assert_int_equal(map_put(&m, "a", 1), MAP_NEW);
    fault_arm("mem@1+", NULL);
    assert_int_equal(map_put(&m, "b", 2), MAP_NOMEM);
    fault_arm(NULL, NULL);
    assert_true(map_get(&m, "a", &value));
    assert_false(map_get(&m, "b", &value));
    assert_int_equal(map_put(&m, "b", 2), MAP_NEW);
    map_fini(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arena_allocations_are_zeroed_and_aligned),
        cmocka_unit_test(arena_copies_and_formats_strings),
        cmocka_unit_test(allocation_of_an_impossible_size_fails),
        cmocka_unit_test(vec_push_keeps_all_elements),
        cmocka_unit_test(map_get_finds_inserted_keys_only),
        cmocka_unit_test(map_distinguishes_keys_with_a_common_prefix),
        cmocka_unit_test(map_put_out_of_memory_keeps_earlier_keys),
    };

    return cmocka_run_group_tests_name("base/memory", tests, NULL, NULL);
}
