/* Tests the status text for `systemctl status`, and which messages are sent at which time, with a
 * socket in place of systemd. test/e2e/test_service.py tests the same with a whole process. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "daemon/service.h"
#include "rdzv/rdzv.h"

static void sentence_states_phase_step_group_and_trouble(void **state)
{
    static const struct {
        struct rdzv_progress p;
        uint64_t generation;
        uint32_t present, world;
        const char *expected;
    } rows[] = {
        { { .phase = "starting", .phase_since_ms = 1000 }, 0, 1, 1, "starting for 4 s" },
        { { .phase = "index", .phase_since_ms = 9000 }, 0, 1, 2, "index for 0 s, 1 of 2 tasks present" },
        { { .phase = "train", .step = 120, .total_steps = 440, .loss = 0.3125 }, 2, 3, 4,
          "train: step 120 of 440 (27 %), loss 0.3125, generation 2, 3 of 4 tasks present" },
        { { .phase = "train", .step = 120, .total_steps = 440, .loss = 0.3125 }, 1, 1, 1,
          "train: step 120 of 440 (27 %), loss 0.3125" },
        { { .phase = "save", .phase_since_ms = 3000, .step = 440, .total_steps = 440 }, 1, 2, 2,
          "save for 2 s, step 440 of 440 (100 %) done, generation 1, 2 of 2 tasks present" },
        { { .phase = "waiting", .phase_since_ms = 2000, .last_trouble = "worker 1 is missing" }, 0, 1, 2,
          "waiting for 3 s, 1 of 2 tasks present; last trouble: worker 1 is missing" },
    };
    char text[1400];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        service_status_text(&rows[i].p, rows[i].generation, rows[i].present, rows[i].world, 5000,
                            text, sizeof(text));
        assert_string_equal(text, rows[i].expected);
    }
}

static void sentence_long_trouble_is_cut(void **state)
{
    struct rdzv_progress p = { .phase = "train", .step = 1, .total_steps = 2 };
    char text[200];

    (void)state;
    memset(p.last_trouble, 'x', sizeof(p.last_trouble) - 1);
    memset(text, '#', sizeof(text));
    service_status_text(&p, 1, 1, 1, 0, text, sizeof(text));
    assert_int_equal(strlen(text), sizeof(text) - 1);
    service_status_text(&p, 1, 1, 1, 0, text, 20);
    assert_string_equal(text, "train: step 1 of 2 ");
}

/* ---- a service manager ---- */

static int manager = -1;

static void open_manager(void)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    snprintf(address.sun_path, sizeof(address.sun_path), "/tmp/trainerd-notify-%d", (int)getpid());
    manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_true(manager >= 0);
    assert_int_equal(bind(manager, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(setenv("NOTIFY_SOCKET", address.sun_path, 1), 0);
    assert_int_equal(setenv("WATCHDOG_USEC", "2000000", 1), 0);
}

static void close_manager(void)
{
    unlink(getenv("NOTIFY_SOCKET"));
    unsetenv("NOTIFY_SOCKET");
    close(manager);
}

/* Returns all messages since the last call, each followed by "|"; a number of microseconds is
 * "N". */
static const char *received(void)
{
    static char all[4096];
    size_t n = 0;
    ssize_t got;

    while ((got = recv(manager, all + n, sizeof(all) - n - 2, MSG_DONTWAIT)) > 0) {
        char *usec;

        all[n + (size_t)got] = '\0';
        usec = strstr(all + n, "_USEC=");
        if (usec != NULL)
            strcpy(usec + 6, "N");
        n += strlen(all + n);
        all[n++] = '|';
    }
    all[n] = '\0';
    return all;
}

static void at_ms(uint64_t ms)
{
    clock_fake(ms * 1000000);
}

/* One test for the whole life cycle, because the state is global to the process. */
static void messages_whole_life_cycle_are_sent_when_due(void **state)
{
    (void)state;
    open_manager();
    service_set_limit(2000); /* the limit of the unit is long enough */
    assert_string_equal(received(), "");
    service_set_limit(2001);
    assert_string_equal(received(), "WATCHDOG_USEC=N|");
    at_ms(10000);
    service_status("index for 0 s");
    assert_string_equal(received(), "STATUS=index for 0 s|");
    service_watchdog(true); /* starting: watchdog message and a request for more time */
    assert_string_equal(received(), "WATCHDOG=1|EXTEND_TIMEOUT_USEC=N|");
    at_ms(10300);
    service_status("index for 1 s");
    service_watchdog(true);
    service_reloading(); /* not sent: a READY after it would be wrong */
    service_reloaded();
    assert_string_equal(received(), "");
    at_ms(10500);
    service_watchdog(false); /* stuck: neither watchdog nor request for more time */
    assert_string_equal(received(), "");
    service_watchdog(true);
    assert_string_equal(received(), "WATCHDOG=1|");
    at_ms(11000);
    service_status("two\nlines=1");
    assert_string_equal(received(), "STATUS=two lines=1|");
    at_ms(12100);
    service_status("two\nlines=1");
    service_watchdog(true);
    assert_string_equal(received(), "WATCHDOG=1|EXTEND_TIMEOUT_USEC=N|");
    service_ready();
    service_ready();
    assert_string_equal(received(), "READY=1|");
    at_ms(20000);
    service_watchdog(true); /* running: no request for more time */
    service_reloading();
    service_reloaded();
    assert_string_equal(received(), "WATCHDOG=1|RELOADING=1\nMONOTONIC_USEC=N|READY=1|");
    at_ms(60000);
    service_watchdog(false);
    assert_string_equal(received(), "");
    service_stopping();
    service_stopping();
    service_reloading();
    service_reloaded();
    service_ready();
    assert_string_equal(received(), "STOPPING=1|");
    service_watchdog(true);
    assert_string_equal(received(), "WATCHDOG=1|EXTEND_TIMEOUT_USEC=N|");
    at_ms(61000);
    service_watchdog(true);
    assert_string_equal(received(), "WATCHDOG=1|");
    at_ms(62000);
    service_watchdog(true);
    assert_string_equal(received(), "WATCHDOG=1|EXTEND_TIMEOUT_USEC=N|");
    service_end(143, "stopped, state saved");
    assert_string_equal(received(), "STATUS=stopped, state saved|");
    clock_fake(UINT64_MAX);
    close_manager();
}

static void messages_no_service_manager_have_no_effect(void **state)
{
    (void)state;
    service_status("x");
    service_watchdog(true);
    service_end(0, "y");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sentence_states_phase_step_group_and_trouble),
        cmocka_unit_test(sentence_long_trouble_is_cut),
        cmocka_unit_test(messages_whole_life_cycle_are_sent_when_due),
        cmocka_unit_test(messages_no_service_manager_have_no_effect),
    };

    return cmocka_run_group_tests_name("daemon/service", tests, NULL, NULL);
}
