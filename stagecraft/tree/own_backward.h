#pragma once

#include <functional>

namespace stagecraft {

/// The backward of a stage body that computes the gradients of its parameters outside autograd. Its
/// forward makes one autograd node, which computes the gradients of the inputs. The body adds the
/// gradients of the parameters to their .grad. A Stage calls it around its backwards:
///
///   begin(true);   autograd pass;  take_weight_work()()       B
///   begin(false);  autograd pass;  work = take_weight_work()  I
///   work()                                                    W
///
/// All of its work runs on the device, so a step can be captured as a graph. Called on the thread
/// of the stage's rank.
class OwnBackward {
 public:
  virtual ~OwnBackward() = default;

  /// Before an autograd pass over one forward: B if `with_weights`, otherwise I.
  virtual void begin(bool with_weights) = 0;
  /// After the pass: what is left to do for the parameters. Empty if nothing is left.
  virtual std::function<void()> take_weight_work() = 0;
  /// A step begins: weights may have changed since the last one.
  virtual void begin_step() = 0;
  /// Releases what is kept from one forward to the next.
  virtual void release_kept() = 0;
};

}  // namespace stagecraft
