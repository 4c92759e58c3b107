/* test_group_view.c - the list of the members of a generation. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/arena.h"
#include "base/fault.h"
#include "base/group_view.h"

static const struct group_member members[] = {
    { .rank = 1, .incarnation = 11, .storage_failures = 2, .name = "worker 1", .host_key = "a" },
    { .rank = 4, .incarnation = 14, .storage_failures = 1, .name = "worker 4", .n_devices = 3 },
    { .rank = 6, .incarnation = 16, .storage_failures = 1, .data_address = "10.0.0.6:2",
      .n_servers = 2 },
};
static const struct group_view view = { .generation = 9,
                                        .n_members = 3,
                                        .members = members,
                                        .self = 2,
                                        .coordinator = 1,
                                        .newest_step = 40,
                                        .newest_member = 2,
                                        .key = { 1, 2, 3 } };

static void member_is_found_by_its_rank_only(void **state)
{
    const struct group_view empty = { .generation = 0 };

    (void)state;
    for (uint32_t i = 0; i < view.n_members; i++)
        assert_ptr_equal(group_view_find(&view, members[i].rank), &members[i]);
    assert_null(group_view_find(&view, 0));
    assert_null(group_view_find(&view, 5));
    assert_null(group_view_find(&view, 7));
    assert_null(group_view_find(&empty, 0));
}

static void coordinator_is_the_lowest_rank_with_the_fewest_storage_failures(void **state)
{
    struct group_member equal[] = { members[1], members[2] };
    const struct group_view without_failures = { .n_members = 2, .members = equal };

    (void)state;
    assert_int_equal(group_view_choose_coordinator(&view), 1);
    assert_int_equal(group_view_choose_coordinator(&without_failures), 0);
    equal[1].n_servers = equal[1].storage_failures = 0;
    assert_int_equal(group_view_choose_coordinator(&without_failures), 1);
}

static void parameter_server_never_coordinates(void **state)
{
    struct group_member mixed[] = { members[0], members[1], members[2] };
    const struct group_view v = { .n_members = 3, .members = mixed };

    (void)state;
    mixed[2].n_servers = 2;
    mixed[2].storage_failures = 0;
    assert_int_equal(group_view_choose_coordinator(&v), 1);
    assert_int_equal(group_view_n_trainers(&v), 2);
    mixed[1].n_servers = 1;
    assert_int_equal(group_view_choose_coordinator(&v), 0);
}

static void copy_contains_every_field_and_its_own_strings(void **state)
{
    struct arena memory = { 0 };
    struct group_view copy;

    (void)state;
    assert_true(group_view_copy(&view, &memory, &copy));
    assert_ptr_not_equal(copy.members, members);
    assert_true(copy.generation == 9 && copy.n_members == 3 && copy.self == 2 &&
                copy.coordinator == 1);
    assert_true(copy.newest_step == 40 && copy.newest_member == 2);
    assert_memory_equal(copy.key, view.key, sizeof(view.key));
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(copy.members[i].rank, members[i].rank);
        assert_int_equal(copy.members[i].incarnation, members[i].incarnation);
        assert_int_equal(copy.members[i].storage_failures, members[i].storage_failures);
        assert_int_equal(copy.members[i].n_devices, members[i].n_devices);
        assert_int_equal(copy.members[i].n_servers, members[i].n_servers);
    }
    assert_string_equal(copy.members[0].name, "worker 1");
    assert_ptr_not_equal(copy.members[0].name, members[0].name);
    assert_string_equal(copy.members[0].host_key, "a");
    assert_string_equal(copy.members[2].data_address, "10.0.0.6:2");
    assert_null(copy.members[2].name);
    arena_fini(&memory);
}

static void copy_without_memory_leaves_the_output_unchanged(void **state)
{
    struct arena memory = { 0 };
    struct group_view out = { .generation = 5 };

    (void)state;
    assert_int_equal(fault_arm("mem@1", NULL), 0);
    assert_false(group_view_copy(&view, &memory, &out));
    assert_int_equal(fault_arm(NULL, NULL), 0);
    assert_true(out.generation == 5 && out.members == NULL);
    arena_fini(&memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(member_is_found_by_its_rank_only),
        cmocka_unit_test(coordinator_is_the_lowest_rank_with_the_fewest_storage_failures),
        cmocka_unit_test(parameter_server_never_coordinates),
        cmocka_unit_test(copy_contains_every_field_and_its_own_strings),
        cmocka_unit_test(copy_without_memory_leaves_the_output_unchanged),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
