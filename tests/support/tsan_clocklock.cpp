// ThreadSanitizer of g++ 12 does not see pthread_mutex_clocklock, which std::timed_mutex calls: the
// mutex would count as free while it is held. It does see the calls below. Part of each program
// that is built with ThreadSanitizer.

#include <cerrno>
#include <ctime>

#include <pthread.h>

extern "C" int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock,
                                       const timespec* limit) noexcept {
  for (;;) {
    const int result = pthread_mutex_trylock(mutex);
    if (result != EBUSY) return result;
    timespec now{};
    clock_gettime(clock, &now);
    const bool is_late = now.tv_sec > limit->tv_sec ||
                         (now.tv_sec == limit->tv_sec && now.tv_nsec >= limit->tv_nsec);
    if (is_late) return ETIMEDOUT;
    const timespec pause{.tv_sec = 0, .tv_nsec = 50'000};
    nanosleep(&pause, nullptr);
  }
}
