/* lacking.h - skips a test for which this machine lacks hardware or a permission. scripts/test counts the line and prints it. A missing
 * package is no reason to skip: the test fails, and names it. */
#ifndef TEST_HARNESS_LACKING_H
#define TEST_HARNESS_LACKING_H

/* Ends the test `__func__`, which was not run. `reason` names what is absent, e.g. "no IPv6". Include cmocka.h first.
 * A test that runs on another device instead calls cmocka's skip(), which is not counted. */
#define skip_lacking(reason)                                                                       \
    do {                                                                                           \
        print_message("skip - %s: %s\n", __func__, reason);                                        \
        skip();                                                                                    \
    } while (0)

#endif
