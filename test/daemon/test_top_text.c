#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/text.h"
#include "daemon/ctl_top_text.h"

enum { TASKS = 40 };

struct group {
    Trainerd__V1__StatusReply reply;
    Trainerd__V1__TaskStatus tasks[TASKS], *refs[TASKS];
    Trainerd__V1__Task names[TASKS];
    Trainerd__V1__StepTime time;
};

/* `n` tasks that train; the caller changes some. */
static struct group *new_group(size_t n)
{
    struct group *g = calloc(1, sizeof(*g));

    assert_non_null(g);
    trainerd__v1__status_reply__init(&g->reply);
    trainerd__v1__step_time__init(&g->time);
    g->time.seconds = 0.02;
    g->time.compute = 0.75;
    g->time.reduce = 0.25;
    g->reply.job = (char *)"digits";
    g->reply.phase = (char *)"train";
    g->reply.tasks = g->refs;
    g->reply.n_tasks = n;
    for (size_t i = 0; i < n; i++) {
        trainerd__v1__task__init(&g->names[i]);
        trainerd__v1__task_status__init(&g->tasks[i]);
        g->names[i].type = (char *)"worker";
        g->names[i].index = (uint32_t)i;
        g->tasks[i].task = &g->names[i];
        g->tasks[i].state = (char *)"active";
        g->tasks[i].phase = (char *)"reduce";
        g->tasks[i].step_time = &g->time;
        g->refs[i] = &g->tasks[i];
    }
    return g;
}

/* The number of lines; each is at most `columns` characters of valid UTF-8 long. */
static size_t check_lines(const char *text, size_t columns)
{
    size_t n = 0;

    for (const char *line = text; *line != '\0'; n++) {
        size_t bytes = strcspn(line, "\n"), characters = 0;

        assert_true(line[bytes] == '\n' && text_is_utf8(line, bytes));
        for (size_t at = 0; at < bytes; at += text_utf8_char(line + at, bytes - at))
            characters++;
        assert_true(characters <= columns);
        line += bytes + 1;
    }
    return n;
}

static void top_more_tasks_than_rows_shows_those_that_need_a_look(void **state)
{
    struct group *g = new_group(TASKS);
    struct buf out = { 0 };

    (void)state;
    g->tasks[33].state = (char *)"missing";
    g->tasks[33].last_error = (char *)"connect: Connection refused";
    g->tasks[37].state = (char *)"joined";
    top_text(&g->reply, (struct top_size){ 80, 14 }, &out);
    assert_int_equal(check_lines(out.data, 80), 14);
    assert_non_null(strstr(out.data, "worker 33   missing"));
    assert_non_null(strstr(out.data, "worker 37   joined"));
    assert_non_null(strstr(out.data, "\n  connect: Connection refused\n")); /* below its task */
    assert_non_null(strstr(out.data, "... and 34 further tasks"));
    assert_true(strstr(out.data, "worker 33 ") < strstr(out.data, "worker 37 "));
    assert_true(strstr(out.data, "worker 37 ") < strstr(out.data, "worker 0 "));
    buf_reset(&out);
    top_text(&g->reply, (struct top_size){ 0, 0 }, &out); /* no terminal: all of them, in their order */
    assert_int_equal(check_lines(out.data, 1000), 6 + TASKS);
    assert_non_null(strstr(out.data, "Connection refused\n"));
    assert_non_null(strstr(out.data, "     0 %    75 %    25 %     0 %"));
    buf_fini(&out);
    free(g);
}

static void top_advice_has_a_line_and_leaves_room_for_the_tasks(void **state)
{
    struct group *g = new_group(TASKS);
    Trainerd__V1__Advice advice = TRAINERD__V1__ADVICE__INIT, *list[] = { &advice, &advice };
    struct buf out = { 0 };

    (void)state;
    advice.text = (char *)"worker 1 is late\x1b[2J by 400 ms";
    g->reply.advice = list;
    g->reply.n_advice = 2;
    top_text(&g->reply, (struct top_size){ 80, 14 }, &out);
    assert_int_equal(check_lines(out.data, 80), 14);
    assert_non_null(strstr(out.data, "\nadvice: worker 1 is late [2J by 400 ms\n"));
    assert_non_null(strstr(out.data, "... and 35 further tasks"));
    buf_fini(&out);
    free(g);
}

static void top_word_wider_than_the_terminal_leaves_no_blank_line(void **state)
{
    struct group *g = new_group(1);
    struct buf out = { 0 };
    char word[201];
    const char *tasks;

    (void)state;
    memset(word, 'x', sizeof(word) - 1);
    word[sizeof(word) - 1] = '\0';
    g->tasks[0].last_error = word;
    top_text(&g->reply, (struct top_size){ 80, 50 }, &out);
    (void)check_lines(out.data, 80);
    tasks = strstr(out.data, "worker 0");
    assert_non_null(tasks);
    assert_int_equal(check_lines(tasks, 80), 4); /* 200 characters in three lines */
    assert_null(strstr(tasks, " \n"));
    buf_fini(&out);
    free(g);
}

static void top_80_columns_keep_rate_step_time_shares_lanes_and_remedy(void **state)
{
    static const char head[] =
        "TASK        STATE   PHASE          STEP SAMPLE/S     TIME D/C/R/CKPT % DEV/LANE\n";
    struct group *g = new_group(2);
    Trainerd__V1__Advice advice = TRAINERD__V1__ADVICE__INIT, *list[] = { &advice };
    struct buf out = { 0 };

    (void)state;
    advice.text =
        (char *)"worker 1 is late by 400 ms of a step of 600 ms, which the other tasks wait for";
    advice.remedy = (char *)"look at the processors of its host, or set elastic.balance";
    g->reply.advice = list;
    g->reply.n_advice = 1;
    g->reply.step = g->tasks[0].step = 12345678;
    g->reply.total_steps = 44000000;
    g->reply.samples_per_second = 15.625;
    g->tasks[0].samples_per_second = 15.625;
    g->tasks[0].n_devices = 2;
    g->tasks[0].lanes = 16;
    g->tasks[1].last_trouble = (char *)"checkpoint of step 100: No space left on device";
    for (size_t columns = 80; columns < 130; columns += 7) {
        buf_reset(&out);
        top_text(&g->reply, (struct top_size){ columns, 50 }, &out);
        (void)check_lines(out.data, columns);
        assert_non_null(strstr(out.data, head));
        assert_non_null(strstr(
            out.data,
            "worker 0    active  reduce     12345678     15.6    20 ms    0/75/25/0     2/16\n"));
        assert_non_null(strstr(out.data, "elastic.balance\n"));
        assert_non_null(strstr(out.data, "15.6 samples/s"));
        assert_non_null(strstr(out.data, "No space left on device\n"));
    }
    buf_reset(&out);
    top_text(&g->reply, (struct top_size){ 80, 10 }, &out);
    assert_true(check_lines(out.data, 80) <= 10);
    buf_fini(&out);
    free(g);
}

static void top_text_of_a_task_cannot_steer_the_terminal(void **state)
{
    struct group *g = new_group(2);
    struct buf out = { 0 };

    (void)state;
    g->reply.job = (char *)"\x1b[2Jdig\nits";
    g->reply.phase = (char *)"tr\x1b"
                             "ain";
    g->names[1].type = (char *)"wor\x1b"
                               "ker";
    g->reply.last_trouble = (char *)"a\x07"
                                    "b\x7f";
    g->tasks[1].last_trouble = (char *)"\xc3\xa4\xc3\xa4\x1b]0;title\x07";
    g->tasks[1].phase = (char *)"re\x1b[31m";
    for (size_t columns = 1; columns < 160; columns++) {
        buf_reset(&out);
        top_text(&g->reply, (struct top_size){ columns, 50 }, &out);
        assert_true(columns < 130 ? check_lines(out.data, columns) >= 8
                                  : check_lines(out.data, columns) == 8);
        assert_null(strpbrk(out.data, "\x1b\x07\x7f"));
    }
    buf_fini(&out);
    free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(top_more_tasks_than_rows_shows_those_that_need_a_look),
        cmocka_unit_test(top_advice_has_a_line_and_leaves_room_for_the_tasks),
        cmocka_unit_test(top_word_wider_than_the_terminal_leaves_no_blank_line),
        cmocka_unit_test(top_80_columns_keep_rate_step_time_shares_lanes_and_remedy),
        cmocka_unit_test(top_text_of_a_task_cannot_steer_the_terminal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
