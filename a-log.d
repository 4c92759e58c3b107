log.o: lib/base/log.c lib/base/log.h lib/base/buf.h lib/base/check.h \
 lib/base/clock.h lib/base/log_sink.h lib/base/text.h lib/base/thread.h
lib/base/log.h:
lib/base/buf.h:
lib/base/check.h:
lib/base/clock.h:
lib/base/log_sink.h:
lib/base/text.h:
lib/base/thread.h:
