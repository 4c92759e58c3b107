/* check.h - CHECK(cond) stops the program on a programming error, in release builds too.
 *
 * A condition that input, the system or a peer can cause is reported as an error instead. */
#ifndef BASE_CHECK_H
#define BASE_CHECK_H

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (__builtin_expect(!(cond), 0))                                                          \
            check_failed(#cond, __FILE__, __LINE__, __func__);                                     \
    } while (0)

/* Writes the location to stderr and aborts. Called by CHECK() only. */
void check_failed(const char *cond, const char *file, int line, const char *func)
    __attribute__((noreturn));

#define COUNT_OF(array_) (sizeof(array_) / sizeof((array_)[0]))

#endif
