#pragma once

#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/schedule.h"

// Each in a file of its own name; builders.cpp lists them.
namespace stagecraft::builders {

Schedule gpipe(const ScheduleShape& shape);
Schedule one_f_one_b(const ScheduleShape& shape);
Schedule looped_bfs(const ScheduleShape& shape);
Schedule interleaved_1f1b(const ScheduleShape& shape);
Schedule interleaved_zero_bubble(const ScheduleShape& shape);
Schedule zbv_zero_bubble(const ScheduleShape& shape);
Schedule dual_pipe_v(const ScheduleShape& shape);
Schedule forward_only(const ScheduleShape& shape);

}  // namespace stagecraft::builders
