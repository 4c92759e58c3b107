control.o: lib/rdzv/control.c lib/rdzv/rdzv_priv.h lib/base/arena.h \
 lib/rdzv/rdzv.h lib/member/node.h lib/member/member.h lib/rdzv/wire.h \
 build/proto/trainerd.pb-c.h lib/base/check.h lib/base/clock.h
lib/rdzv/rdzv_priv.h:
lib/base/arena.h:
lib/rdzv/rdzv.h:
lib/member/node.h:
lib/member/member.h:
lib/rdzv/wire.h:
build/proto/trainerd.pb-c.h:
lib/base/check.h:
lib/base/clock.h:
