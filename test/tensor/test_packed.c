/* Packed rows against dense tables: an array of floats and one of flags, compared row by row. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "tensor/packed.h"

enum { N_TABLES = 5, FLOATS = 64 * 3 + 1000 * 1 + 65 * 16 + 1 * 7 + 130 * 5 };

static struct packed_table tables[N_TABLES] = {
    { .rows = 64, .width = 3 }, { .rows = 1000, .width = 1 }, { .rows = 65, .width = 16 },
    { .rows = 1, .width = 7 },  { .rows = 130, .width = 5 },
};

struct whole { /* the same data, dense */
    bool marked[1300];
    float x[FLOATS];
};

struct set {
    struct packed rows;
    float values[FLOATS + 1]; /* one more, which must stay unchanged */
    void *memory;
};

static uint32_t draw(uint32_t *x)
{
    *x = 1664525 * *x + 1013904223;
    return *x >> 8;
}

static struct set *set_new(void)
{
    size_t words = packed_layout(tables, N_TABLES);
    struct set *s = malloc(sizeof(*s));

    assert_non_null(s);
    s->memory = malloc(packed_bytes(N_TABLES, words));
    assert_non_null(s->memory);
    memset(s->memory, 0xFF, packed_bytes(N_TABLES, words));
    memset(s->values, 0xFF, sizeof(s->values));
    s->rows = packed_init(tables, N_TABLES, words, s->memory);
    return s;
}

static void set_free(struct set *s)
{
    free(s->memory);
    free(s);
}

/* Marks about one row in `one_in` (0: none, 1: all) and sets its values, dense and packed, as a
 * kernel does. */
static void fill(uint32_t *seed, uint32_t one_in, struct whole *w, struct set *s)
{
    size_t row = 0, at = 0;

    memset(w, 0, sizeof(*w));
    packed_clear(&s->rows);
    for (int pass = 0; pass < 2; pass++) {
        row = at = 0;
        for (uint32_t t = 0; t < N_TABLES; t++) {
            size_t word = tables[t].first_word;
            struct packed_rows kernel = { .marks = s->rows.marks + word,
                                          .before = s->rows.before + word,
                                          .values = s->values + s->rows.first[t] };

            for (size_t r = 0; r < tables[t].rows; r++, row++, at += tables[t].width) {
                if (pass == 0 && one_in > 0 && draw(seed) % one_in == 0) {
                    w->marked[row] = true;
                    packed_mark(&kernel, r);
                    packed_mark(&kernel, r);
                }
                for (size_t k = 0; pass == 1 && w->marked[row] && k < tables[t].width; k++) {
                    size_t place = packed_place(kernel.marks, kernel.before, r);

                    w->x[at + k] = (float)draw(seed) / 1000.0f;
                    kernel.values[place * tables[t].width + k] = w->x[at + k];
                }
            }
        }
        packed_index(&s->rows);
    }
}

static void expect(const struct set *s, const struct whole *w)
{
    size_t row = 0, at = 0, next = 0;

    for (uint32_t t = 0; t < N_TABLES; t++) {
        assert_int_equal(s->rows.first[t], next);
        for (size_t r = 0; r < tables[t].rows; r++, row++, at += tables[t].width) {
            uint64_t word = s->rows.marks[tables[t].first_word + r / 64];

            assert_int_equal(word >> r % 64 & 1, w->marked[row]);
            if (!w->marked[row])
                continue;
            assert_memory_equal(s->values + next, w->x + at, tables[t].width * sizeof(float));
            next += tables[t].width;
        }
    }
    assert_int_equal(packed_floats(&s->rows), next);
}

static void marked_rows_are_stored_in_order_of_tables_and_rows(void **state)
{
    struct set *s = set_new();
    struct whole w;
    uint32_t seed = 1;

    (void)state;
    for (uint32_t one_in = 0; one_in < 40; one_in++) {
        fill(&seed, one_in, &w, s);
        expect(s, &w);
    }
    set_free(s);
}

static void packed_sum_has_union_of_rows_and_bits_of_dense_sum(void **state)
{
    static const uint32_t density[] = { 0, 1, 2, 7, 50, 400 };
    struct set *a = set_new(), *b = set_new();
    struct whole wa, wb;
    uint32_t seed = 2;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(density); i++)
        for (size_t k = 0; k < COUNT_OF(density); k++) {
            float untouched;

            fill(&seed, density[i], &wa, a);
            fill(&seed, density[k], &wb, b);
            memset(&a->values[packed_floats(&a->rows)], 0xFF,
                   (FLOATS + 1 - packed_floats(&a->rows)) * sizeof(float));
            packed_add(&a->rows, a->values, &b->rows, b->values);
            for (size_t r = 0; r < COUNT_OF(wa.marked); r++)
                wa.marked[r] = wa.marked[r] || wb.marked[r];
            for (size_t e = 0; e < FLOATS; e++)
                wa.x[e] += wb.x[e];
            expect(a, &wa);
            expect(b, &wb);
            memset(&untouched, 0xFF, sizeof(untouched));
            assert_memory_equal(&a->values[packed_floats(&a->rows)], &untouched, sizeof(float));
        }
    set_free(a);
    set_free(b);
}

static void rows_added_without_values_are_zero(void **state)
{
    struct set *a = set_new(), *b = set_new();
    struct whole wa, wb;
    uint32_t seed = 3;

    (void)state;
    for (uint32_t one_in = 1; one_in < 30; one_in += 4) {
        fill(&seed, 9, &wa, a);
        fill(&seed, one_in, &wb, b);
        packed_add(&a->rows, a->values, &b->rows, NULL);
        for (size_t r = 0; r < COUNT_OF(wa.marked); r++)
            wa.marked[r] = wa.marked[r] || wb.marked[r];
        expect(a, &wa);
    }
    set_free(a);
    set_free(b);
}

/* For any division of a table into ranges, the runs of all ranges contain every marked float once,
 * in order. */
static void runs_cover_all_marked_floats_for_any_division(void **state)
{
    struct set *s = set_new();
    struct whole w;
    uint32_t seed = 4;

    (void)state;
    for (uint32_t one_in = 0; one_in < 12; one_in++) {
        size_t row = 0, at = 0;

        fill(&seed, one_in, &w, s);
        for (uint32_t t = 0; t < N_TABLES; t++) {
            size_t n = tables[t].rows * tables[t].width, seen = 0, wanted = 0, end;

            for (size_t from = 0; from < n; from = end) {
                struct packed_run run;

                end = from + 1 + draw(&seed) % 100;
                end = end < n ? end : n;
                run = packed_runs(&s->rows, t, from, end);
                while (packed_next(&run)) {
                    assert_true(run.n > 0 && run.at >= from && run.at + run.n <= end);
                    for (size_t e = run.at; e < run.at + run.n; e++)
                        assert_true(w.marked[row + e / tables[t].width]);
                    assert_memory_equal(s->values + run.values, w.x + at + run.at,
                                        run.n * sizeof(float));
                    if (run.at + run.n < end) /* a row without a mark follows */
                        assert_false(w.marked[row + (run.at + run.n) / tables[t].width]);
                    seen += run.n;
                }
            }
            for (size_t r = 0; r < tables[t].rows; r++)
                wanted += w.marked[row + r] ? tables[t].width : 0;
            assert_int_equal(seen, wanted);
            row += tables[t].rows;
            at += n;
            for (int i = 0; i < 2; i++) { /* an empty range, at either end */
                struct packed_run run = packed_runs(&s->rows, t, i * n, i * n);

                assert_false(packed_next(&run));
            }
        }
    }
    set_free(s);
}

static void empty_list_of_tables_is_valid(void **state)
{
    size_t words = packed_layout(NULL, 0), memory[4];
    struct packed a, b;
    float nothing = 0;

    (void)state;
    assert_int_equal(words, 0);
    assert_true(packed_bytes(0, 0) <= sizeof(memory));
    a = packed_init(NULL, 0, 0, memory);
    b = a;
    packed_clear(&a);
    packed_add(&a, &nothing, &b, &nothing);
    assert_int_equal(packed_floats(&a), 0);
}

static void mark_past_the_last_row_of_a_table_is_invalid(void **state)
{
    struct packed_table tables[] = { { .rows = 70, .width = 2 }, { .rows = 64, .width = 1 } };
    size_t n_words = packed_layout(tables, 2);
    uint64_t memory[64];
    struct packed p;

    (void)state;
    assert_true(packed_bytes(2, n_words) <= sizeof(memory));
    p = packed_init(tables, 2, n_words, memory);
    p.marks[tables[0].first_word + 1] = 1ull << 5; /* row 69 */
    p.marks[tables[1].first_word] = 1ull << 63;
    assert_true(packed_is_valid(&p));
    p.marks[tables[0].first_word + 1] |= 1ull << 6;
    assert_false(packed_is_valid(&p));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mark_past_the_last_row_of_a_table_is_invalid),
        cmocka_unit_test(marked_rows_are_stored_in_order_of_tables_and_rows),
        cmocka_unit_test(packed_sum_has_union_of_rows_and_bits_of_dense_sum),
        cmocka_unit_test(rows_added_without_values_are_zero),
        cmocka_unit_test(runs_cover_all_marked_floats_for_any_division),
        cmocka_unit_test(empty_list_of_tables_is_valid),
    };

    return cmocka_run_group_tests_name("tensor/packed", tests, NULL, NULL);
}
