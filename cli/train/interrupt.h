#pragma once

namespace stagecraft::cli {

/// From now on the first Ctrl-C (SIGINT) or SIGTERM is noted. The second one ends the program.
void note_interrupts();

/// The signal that was noted; 0 if there was none.
int noted_interrupt();

}  // namespace stagecraft::cli
