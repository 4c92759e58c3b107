/* Vectors of coded and raw blocks: sizes, wire form and rounding, block by block. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "code/map.h"

enum { N = 9 * CODE_BLOCK + 100, MAPPED = 8 * CODE_BLOCK + 17 };

static const struct code_key key = { .seed = 9, .step = 4, .place = 1 };

static void fill(float *x)
{
    for (int i = 0; i < N; i++)
        x[i] = (float)((i * 7919) % 1009 - 500) / 321;
}

/* Blocks 2, 5 and 6 are raw. */
static void open_map(struct code_map *m, enum code_kind kind)
{
    struct err err;

    assert_int_equal(code_map_open(m, kind, MAPPED, &err), 0);
    code_map_raw(m, 2 * CODE_BLOCK + 3, 2 * CODE_BLOCK + 4);
    code_map_raw(m, 6 * CODE_BLOCK - 1, 6 * CODE_BLOCK + 1);
    code_map_raw(m, 4 * CODE_BLOCK, 4 * CODE_BLOCK); /* nothing */
    code_map_index(m);
}

static void blocks_with_raw_elements_are_raw_and_so_is_all_after_the_map(void **state)
{
    const bool expected[] = { 1, 1, 0, 1, 1, 0, 0, 1, 0, 0, 0 };
    struct code_map m;

    (void)state;
    open_map(&m, CODE_INT8);
    for (size_t b = 0; b < sizeof(expected); b++)
        assert_int_equal(code_map_is_coded(&m, b), expected[b]);
    assert_int_equal(code_map_coded(&m), 5 * CODE_BLOCK);
    assert_int_equal(code_map_bytes(&m, 0, N), 5 * 260 + 4 * (N - 5 * CODE_BLOCK));
    assert_int_equal(code_map_bytes(&m, CODE_BLOCK, 3 * CODE_BLOCK), 260 + 1024);
    assert_int_equal(code_map_bytes(&m, 8 * CODE_BLOCK, 8 * CODE_BLOCK + 5), 20);
    assert_int_equal(code_map_bytes(&m, 512, 512), 0);
    code_map_close(&m);
}

/* The coded blocks alone, one after the other. */
static void check_coded_blocks(const struct code_map *m, const float *x, size_t begin, size_t end)
{
    static uint8_t out[N * 4], in[CODE_RAW_BYTES];
    size_t at = 0, bytes = code_block_bytes(m->kind);

    memset(out, 0xaa, sizeof(out));
    code_map_write_coded(m, &key, x + begin, begin, end, out);
    for (size_t b = begin / CODE_BLOCK; b < 8 && b * CODE_BLOCK < end; b++)
        if (b != 2 && b != 5 && b != 6) {
            code_encode(m->kind, &key, b * CODE_BLOCK, x + b * CODE_BLOCK, 1, in);
            assert_memory_equal(out + at, in, bytes);
            at += bytes;
        }
    assert_int_equal(code_map_coded_bytes(m, begin, end), at);
    assert_int_equal(out[at], 0xaa);
}

/* Every range that begins and ends at a block has the bytes of its blocks. */
static void wire_form_is_that_of_the_blocks_one_after_the_other(void **state)
{
    static float x[N], y[N], rounded[N], block[CODE_BLOCK];
    static uint8_t out[N * 4], in[CODE_RAW_BYTES];
    struct code_map m;

    (void)state;
    fill(x);
    for (int kind = CODE_BFLOAT16; kind < CODE_KINDS; kind++) {
        open_map(&m, (enum code_kind)kind);
        for (size_t first = 0; first < 10; first++)
            for (size_t last = first; last < 10; last++) {
                size_t begin = first * CODE_BLOCK, end = last == 9 ? N : (last + 1) * CODE_BLOCK,
                       at = 0;

                memset(out, 0xaa, sizeof(out));
                code_map_write(&m, &key, x + begin, begin, end, out);
                code_map_read(&m, out, begin, end, y + begin);
                memcpy(rounded, x, sizeof(x));
                code_map_round(&m, &key, rounded + begin, begin, end, NULL);
                assert_memory_equal(rounded + begin, y + begin, (end - begin) * sizeof(float));
                for (size_t b = first; b <= last; b++) {
                    const float *own = x + b * CODE_BLOCK;
                    size_t n = b == 9 ? N - 9 * CODE_BLOCK : CODE_BLOCK;
                    bool is_coded = b < 8 && b != 2 && b != 5 && b != 6;
                    size_t bytes =
                        is_coded ? code_block_bytes((enum code_kind)kind) : n * sizeof(float);

                    memcpy(in, own, n * sizeof(float));
                    memcpy(block, own, n * sizeof(float));
                    if (is_coded) {
                        code_encode((enum code_kind)kind, &key, b * CODE_BLOCK, own, 1, in);
                        code_decode((enum code_kind)kind, in, 1, block);
                    }
                    assert_memory_equal(out + at, in, bytes);
                    assert_memory_equal(y + b * CODE_BLOCK, block, n * sizeof(float));
                    at += bytes;
                }
                assert_int_equal(code_map_bytes(&m, begin, end), at);
                assert_int_equal(out[at], 0xaa);
                check_coded_blocks(&m, x, begin, end);
            }
        code_map_close(&m);
    }
}

static void map_of_less_than_a_block_codes_nothing(void **state)
{
    struct code_map m;
    struct err err;

    (void)state;
    assert_int_equal(code_map_open(&m, CODE_INT4, CODE_BLOCK - 1, &err), 0);
    assert_int_equal(code_map_bytes(&m, 0, 100), 400);
    assert_int_equal(code_map_coded(&m), 0);
    code_map_close(&m);
    code_map_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_with_raw_elements_are_raw_and_so_is_all_after_the_map),
        cmocka_unit_test(wire_form_is_that_of_the_blocks_one_after_the_other),
        cmocka_unit_test(map_of_less_than_a_block_codes_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
