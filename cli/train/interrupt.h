#pragma once

namespace stagecraft::cli {

/// From now on Ctrl-C (SIGINT) and SIGTERM are noted instead of ending the program; the second time
/// they end it.
void note_interrupts();

/// The signal that came, 0 for none.
int noted_interrupt();

}  // namespace stagecraft::cli
