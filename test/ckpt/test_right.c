/* A writer whose right to publish moves to another task. */
#include "ckpt/kit.h"

#include "base/fault.h"
#include "ckpt/lease.h"

/* What may_publish() answers, from the n-th time it is asked (counted from 1). */
struct judge {
    struct kit_story story; /* the events, in the same place as for kit_on_event() */
    int asked, no_from, code;
    int hold_at;     /* this question is answered when `is_free` is set */
    bool is_held, is_free;
};

static int judge(void *arg, struct err *err)
{
    struct judge *j = arg;

    int asked = __atomic_add_fetch(&j->asked, 1, __ATOMIC_SEQ_CST);

    __atomic_store_n(&j->is_held, asked == j->hold_at, __ATOMIC_SEQ_CST);
    while (asked == j->hold_at && !__atomic_load_n(&j->is_free, __ATOMIC_SEQ_CST))
        kit_nap(1);
    return j->no_from > 0 && asked >= j->no_from ? err_set(err, j->code, "lease 2: not ours") : 0;
}

static struct ckpt_writer_opts judged(const char *folder, struct judge *j)
{
    struct ckpt_writer_opts opts = kit_opts(folder);

    opts.on_event = kit_on_event;
    opts.may_publish = judge;
    opts.arg = j;
    return opts;
}

/* Asked: by the thread at its start, before it writes, before the rename. */
static void who_is_refused_discards_its_copy_and_leaves_nothing(void **state)
{
    (void)state;
    for (int from = 1; from <= 3; from++) {
        char *folder = kit_folder();
        struct judge j = { .no_from = from, .code = ERR_REFUSED };
        struct ckpt_writer_opts opts = judged(folder, &j);
        struct ckpt_meta one = kit_meta(1), two = kit_meta(2), three = kit_meta(3);
        struct ckpt_writer *w = kit_open(&opts);
        struct err err;

        kit_write(w, &one, 1);
        assert_int_equal(flush_for(w, 20000, &err), ERR_REFUSED);
        assert_text(err.text, "lease 2: not ours");
        kit_write(w, &two, 2);
        assert_int_equal(flush_for(w, 20000, &err), ERR_REFUSED);
        assert_string_equal(j.story.text, "discarded 1, discarded 2 again");
        assert_int_equal(kit_count(folder, ""), 0);
        j.no_from = 0; /* the right comes back */
        kit_write(w, &three, 3);
        kit_flush(w);
        ckpt_writer_close(w);
        assert_int_equal(kit_count(folder, ""), 1);
        kit_remove(folder);
    }
}

static void who_cannot_know_tries_again(void **state)
{
    char *folder = kit_folder();
    struct judge j = { .no_from = 3, .code = ERR_IO };
    struct ckpt_writer_opts opts = judged(folder, &j);
    struct ckpt_meta one = kit_meta(1);
    struct ckpt_writer *w;
    struct err err;

    (void)state;
    opts.retry_ms = 100000;
    w = kit_open(&opts);
    kit_write(w, &one, 1);
    while (flush_for(w, 10, &err) != ERR_IO)
        assert_int_equal(err.code, ERR_TIMEOUT);
    j.no_from = 0;
    kit_flush(w);
    ckpt_writer_close(w);
    assert_non_null(strstr(j.story.text, "failed 1"));
    assert_non_null(strstr(j.story.text, "written 1"));
    kit_remove(folder);
}

static void a_step_that_is_there_already_is_a_success_without_any_right(void **state)
{
    char *folder = kit_folder();
    struct judge j = { .no_from = 1, .code = ERR_REFUSED };
    struct ckpt_writer_opts opts = judged(folder, &j);
    struct ckpt_meta seven = kit_meta(7);
    struct ckpt_writer *w;

    (void)state;
    kit_save(folder, 6, 6);
    kit_save(folder, 7, 7);
    opts.max_to_keep = 1;
    w = kit_open(&opts);
    kit_write(w, &seven, 7);
    kit_flush(w);
    ckpt_writer_close(w);
    assert_string_equal(j.story.text, "written 7");
    assert_int_equal(kit_count(folder, "step-"), 2); /* and nothing is removed without a right */
    kit_remove(folder);
}

/* Start, write, rename: which does not do, for something else is there, and looking at it takes long. */
static void who_is_refused_at_last_replaces_nothing(void **state)
{
    char *folder = kit_folder();
    struct judge j = { .no_from = 4, .code = ERR_REFUSED };
    struct ckpt_writer_opts opts = judged(folder, &j);
    struct ckpt_meta seven = kit_meta(7);
    struct ckpt_writer *w;
    struct ckpt_info info;
    struct err err;

    (void)state;
    kit_save(folder, 7, 7);
    strcpy(seven.job_digest, "former");
    w = kit_open(&opts);
    while (__atomic_load_n(&j.asked, __ATOMIC_SEQ_CST) == 0)
        kit_nap(1);
    kit_write(w, &seven, 1);
    assert_int_equal(flush_for(w, 20000, &err), ERR_REFUSED);
    ckpt_writer_close(w);
    assert_string_equal(j.story.text, "discarded 7");
    assert_int_equal(kit_count(folder, ""), 1);
    assert_int_equal(kit_newest(folder, &info), 7);
    assert_string_equal(info.meta.job_digest, "j0b");
    kit_load(info.path, 7);
    kit_remove(folder);
}

static void nothing_is_removed_after_the_right_is_lost(void **state)
{
    char *folder = kit_folder();
    struct judge j = { .no_from = 5, .code = ERR_REFUSED }; /* start, write, rename, first removal */
    struct ckpt_writer_opts opts = judged(folder, &j);
    struct ckpt_meta four = kit_meta(4);
    struct ckpt_writer *w;

    (void)state;
    for (uint64_t step = 1; step <= 3; step++)
        kit_save(folder, step, step);
    opts.max_to_keep = 1;
    w = kit_open(&opts);
    while (__atomic_load_n(&j.asked, __ATOMIC_SEQ_CST) == 0)
        kit_nap(1);
    kit_write(w, &four, 4);
    kit_flush(w);
    ckpt_writer_close(w);
    assert_string_equal(j.story.text, "written 4, removed 1");
    kit_remove(folder);
}

/* Before it is written, and before the rename. */
static void what_is_abandoned_is_not_published_and_the_writer_goes_on(void **state)
{
    (void)state;
    for (int at = 2; at <= 3; at++) {
        char *folder = kit_folder();
        struct judge j = { .hold_at = at };
        struct ckpt_writer_opts opts = judged(folder, &j);
        struct ckpt_meta one = kit_meta(1), two = kit_meta(2);
        struct ckpt_writer *w = kit_open(&opts);
        struct err err;
        void *staging;

        kit_write(w, &one, 1);
        while (!__atomic_load_n(&j.is_held, __ATOMIC_SEQ_CST))
            kit_nap(1);
        ckpt_abandon(w);
        assert_int_equal(ckpt_begin(w, &staging, NULL), ERR_EXISTS); /* it has not noticed yet */
        __atomic_store_n(&j.is_free, true, __ATOMIC_SEQ_CST);
        assert_int_equal(flush_for(w, 20000, &err), ERR_CANCELED);
        assert_int_equal(kit_count(folder, ""), 0);
        kit_write(w, &two, 2);
        kit_flush(w);
        ckpt_abandon(w); /* of nothing */
        ckpt_writer_close(w);
        assert_string_equal(j.story.text, "discarded 1, written 2");
        kit_remove(folder);
    }
}

static void what_waits_or_is_being_filled_can_be_abandoned_too(void **state)
{
    (void)state;
    for (int replaced = 0; replaced < 2; replaced++) {
        char *folder = kit_folder();
        struct kit_story story = { .text = "" };
        struct ckpt_writer_opts opts = kit_opts(folder);
        struct ckpt_meta one = kit_meta(1), two = kit_meta(2);
        struct ckpt_writer *w;
        struct err err;
        void *staging;

        opts.on_event = kit_on_event;
        opts.arg = &story;
        opts.retry_ms = 100000;
        w = kit_open(&opts);
        assert_int_equal(ckpt_begin(w, &staging, NULL), 0);
        ckpt_abandon(w);
        assert_int_equal(fault_arm("ckpt.write@1+", NULL), 0);
        kit_write(w, &one, 1);
        while (flush_for(w, 5, &err) != ERR_IO) /* until it waits */
            assert_int_equal(err.code, ERR_TIMEOUT);
        assert_int_equal(fault_arm(NULL, NULL), 0);
        story.text[0] = '\0';
        ckpt_abandon(w);
        if (!replaced) {
            assert_int_equal(flush_for(w, 20000, &err), ERR_CANCELED);
            assert_string_equal(story.text, "discarded 1");
        }
        kit_write(w, &two, 2); /* is not taken for the one that was abandoned */
        kit_flush(w);
        ckpt_writer_close(w);
        assert_non_null(strstr(story.text, "written 2"));
        assert_int_equal(kit_count(folder, ""), 1);
        kit_remove(folder);
    }
}

/* ---- with a lease ---- */

static void on_lease(void *arg, const struct lease_state *s)
{
    __atomic_store_n((uint64_t *)arg, s->is_mine ? s->token : 0, __ATOMIC_SEQ_CST);
}

static int may_by_lease(void *arg, struct err *err)
{
    return lease_check(arg, err);
}

static void of_two_tasks_the_one_with_the_lease_writes(void **state)
{
    char *folder = kit_folder(), *leases = fs_join(folder, "leases");
    struct ckpt_writer_opts opts = kit_opts(folder);
    struct ckpt_writer *w[2];
    struct lease *l[2];
    uint64_t mine[2] = { 0, 0 };
    struct ckpt_info info;
    struct err err;

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        struct lease_opts o = { .directory = leases, .rank = i, .name = "a task",
                                .incarnation = 100 + i, .hold_ms = 20000, .watch_ms = 40000,
                                .on_change = on_lease, .arg = &mine[i] };

        assert_int_equal(lease_open(&o, &l[i], &err), 0);
        opts.may_publish = may_by_lease;
        opts.arg = l[i];
        w[i] = kit_open(&opts);
    }
    for (uint64_t step = 1; step <= 6; step++) { /* the lease goes to and fro */
        struct ckpt_meta meta = kit_meta(step);
        uint32_t holder = (uint32_t)step % 2;

        lease_take(l[holder], step - 1, &holder, 1);
        while (__atomic_load_n(&mine[holder], __ATOMIC_SEQ_CST) != step)
            kit_nap(1);
        kit_write(w[1 - holder], &meta, step);
        assert_int_equal(flush_for(w[1 - holder], 20000, &err), ERR_REFUSED);
        kit_write(w[holder], &meta, step);
        kit_flush(w[holder]);
        assert_int_equal(kit_newest(folder, &info), step);
    }
    for (int i = 0; i < 2; i++) {
        ckpt_writer_close(w[i]);
        lease_close(l[i]);
    }
    kit_check_folder(folder);
    free(leases);
    kit_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_is_refused_discards_its_copy_and_leaves_nothing),
        cmocka_unit_test(who_cannot_know_tries_again),
        cmocka_unit_test(a_step_that_is_there_already_is_a_success_without_any_right),
        cmocka_unit_test(who_is_refused_at_last_replaces_nothing),
        cmocka_unit_test(nothing_is_removed_after_the_right_is_lost),
        cmocka_unit_test(what_is_abandoned_is_not_published_and_the_writer_goes_on),
        cmocka_unit_test(what_waits_or_is_being_filled_can_be_abandoned_too),
        cmocka_unit_test(of_two_tasks_the_one_with_the_lease_writes),
    };

    return cmocka_run_group_tests_name("ckpt/right", tests, NULL, NULL);
}
