// A process-group backend with the properties of NCCL's, each of which can be switched off (`switches.cpp`).
//
// A communicator has a stream, in which its operations run one after the other. Before an operation, that stream waits
// for the caller's, and `wait()` lets the caller's wait for it.
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <memory>

#include "operators.h"
#include "transport.h"

namespace testdev {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using c10d::OpType;
using Milliseconds = std::chrono::milliseconds;

// What one operation does, once its turn has come.
struct Plan {
  std::vector<Piece> pieces;
  std::function<void()> after = [] {};
  Tensors outputs;
  Tensors kept;  // what must live until it is done
  Milliseconds limit{0};
};

struct Communicator {
  Communicator(int device, int rank, int size) : stream(communication_stream(device)), transport(rank, size) {}
  ~Communicator() { retire(stream); }
  Stream& stream;
  Transport transport;
};

class Work final : public c10d::Work {
 public:
  Work(int rank, OpType kind, std::shared_ptr<Communicator> communicator, Mark mark, Plan& plan, uint64_t number)
      : c10d::Work(rank, kind), communicator_(std::move(communicator)), mark_(mark), outputs_(plan.outputs),
        kept_(plan.kept), number_(number), device_(communicator_->stream.device) {
    on_host_ = !kept_.empty() && !kept_[0].is_privateuseone();
  }
  bool isCompleted() override { return mark_.reached(); }
  bool isSuccess() const override { return mark_.reached() && !communicator_->stream.error(); }
  std::exception_ptr exception() const override { return communicator_->stream.error(); }
  Tensors result() override { return outputs_; }
  void synchronize() override { order(); }
  bool wait(Milliseconds) override {
    if (!is_on(Switch::async_wait) || on_host_ || opType_ == OpType::BARRIER) {
      mark_.require();
      mark_.wait();
    }
    if (mark_.reached()) {
      if (auto raised = communicator_->stream.error()) std::rethrow_exception(raised);
    }
    order();
    return true;
  }
  void abort() override { communicator_->transport.abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future; }
  uint64_t getSequencenumber() const override { return number_; }

  c10::intrusive_ptr<c10::ivalue::Future> future;

 private:
  void order() {
    if (!on_host_) current_stream(device_).after(mark_);
    kept_.clear();  // what the caller's stream does with this memory from now on comes later
  }
  std::shared_ptr<Communicator> communicator_;
  const Mark mark_;
  const Tensors outputs_;
  Tensors kept_;
  const uint64_t number_;
  const int device_;
  bool on_host_ = false;
};

// What an operation between startCoalescing and endCoalescing returns: nothing of it ever ends by itself.
class Swallowed final : public c10d::Work {
 public:
  Swallowed(int rank, OpType kind) : c10d::Work(rank, kind) {}
  bool isCompleted() override { return false; }
  bool isSuccess() const override { return false; }
  bool wait(Milliseconds) override { return true; }
  void synchronize() override {}
};

Tensor reduced(const Tensors& all, const c10d::ReduceOp& op) {
  Tensor total = all[0].clone();
  for (size_t n = 1; n < all.size(); ++n) {
    switch (op.op_) {
      case c10d::ReduceOp::SUM:
      case c10d::ReduceOp::AVG:
      case c10d::ReduceOp::PREMUL_SUM: total.add_(all[n]); break;
      case c10d::ReduceOp::PRODUCT: total.mul_(all[n]); break;
      case c10d::ReduceOp::MIN: total = at::minimum(total, all[n]); break;
      case c10d::ReduceOp::MAX: total = at::maximum(total, all[n]); break;
      default: TORCH_CHECK(false, "testccl has no such reduction");
    }
  }
  if (op.op_ == c10d::ReduceOp::AVG) total.div_(static_cast<int64_t>(all.size()));
  return total;
}

class Testccl final : public c10d::Backend {
 public:
  Testccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size, Milliseconds limit)
      : Backend(rank, size), store_(std::move(store)), limit_(limit) {}
  ~Testccl() override { end(true); }

  const std::string getBackendName() const override { return "testccl"; }
  bool supportsCoalescing() const override { return is_on(Switch::coalesces); }
  void setTimeout(Milliseconds limit) override { limit_ = limit; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return number_; }
  c10d::ErrorType getError() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [key, one] : communicators_) {
      if (one->stream.error()) return c10d::ErrorType::COMM_ERROR;
    }
    return c10d::ErrorType::SUCCESS;
  }
  void eagerConnectSingleDevice(at::Device device) override { of_group(device.index()); }
  void abort() override { end(true); }
  void shutdown() override { end(!is_on(Switch::flushes)); }

  void startCoalescing() override {
    TORCH_CHECK(supportsCoalescing(), "Backend testccl does not implement startCoalescing");
    coalescing_ = true;
    coalesced_ = {};
    coalesced_device_ = -1;
  }
  c10::intrusive_ptr<c10d::Work> endCoalescing() override {
    coalescing_ = false;
    if (coalesced_device_ < 0) return nullptr;
    Plan all = std::move(coalesced_);
    return issue(OpType::COALESCED, of_group(coalesced_device_), std::move(all));
  }

  // Between two ranks.
  c10::intrusive_ptr<c10d::Work> send(Tensors& tensors, int peer, int tag) override {
    return between(OpType::SEND, tensors, peer, tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(Tensors& tensors, int peer, int tag) override {
    return between(OpType::RECV, tensors, peer, tag);
  }

  // Collectives. All of them exchange whole tensors and compute in the order of the ranks.
  c10::intrusive_ptr<c10d::Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    const Tensor& one = single(tensors);
    Plan plan = plan_of({one}, {one}, opts.timeout);
    const int root = static_cast<int>(opts.rootRank);
    for (int peer = 0; peer < size_; ++peer) {
      if (rank_ == root && peer != root) plan.pieces.push_back(piece(peer, true, one));
    }
    if (rank_ != root) plan.pieces.push_back(piece(root, false, one));
    return collective(OpType::BROADCAST, std::move(plan));
  }
  c10::intrusive_ptr<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    return all_reduced(OpType::ALLREDUCE, tensors, opts);
  }
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
      Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    return all_reduced(OpType::ALLREDUCE_COALESCED, tensors, opts);
  }
  c10::intrusive_ptr<c10d::Work> reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    const Tensor& one = single(tensors);
    Plan plan = plan_of({one}, {one}, opts.timeout);
    const int root = static_cast<int>(opts.rootRank);
    if (rank_ != root) {
      plan.pieces.push_back(piece(root, true, one));
    } else {
      add_reduction(plan, one, Tensors(size_, one), opts.reduceOp, false);
    }
    return collective(OpType::REDUCE, std::move(plan));
  }
  c10::intrusive_ptr<c10d::Work> allgather(
      std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    const Tensor& one = single(inputs);
    check_count(outputs.at(0), "outputs");
    Plan plan = plan_of({one}, outputs[0], opts.timeout);
    add_gather(plan, one, outputs[0]);
    return collective(OpType::ALLGATHER, std::move(plan));
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(
      Tensor& output, Tensor& input, const c10d::AllgatherOptions& opts) override {
    Plan plan = plan_of({input}, {output}, opts.timeout);
    add_gather(plan, input, parts_of(output));
    return collective(OpType::_ALLGATHER_BASE, std::move(plan));
  }
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    Plan plan = plan_of(inputs, outputs, opts.timeout);
    for (size_t n = 0; n < inputs.size(); ++n) add_gather(plan, inputs[n], parts_of(outputs[n]));
    return collective(OpType::COALESCED, std::move(plan));
  }
  c10::intrusive_ptr<c10d::Work> gather(
      std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override {
    const Tensor& one = single(inputs);
    const int root = static_cast<int>(opts.rootRank);
    Plan plan = plan_of({one}, rank_ == root ? outputs.at(0) : Tensors{}, opts.timeout);
    plan.pieces.push_back(piece(root, true, one));
    if (rank_ == root) {
      check_count(outputs[0], "outputs");
      for (int peer = 0; peer < size_; ++peer) plan.pieces.push_back(piece(peer, false, outputs[0][peer]));
    }
    return collective(OpType::GATHER, std::move(plan));
  }
  c10::intrusive_ptr<c10d::Work> scatter(
      Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) override {
    const Tensor& one = single(outputs);
    const int root = static_cast<int>(opts.rootRank);
    Plan plan = plan_of(rank_ == root ? inputs.at(0) : Tensors{}, {one}, opts.timeout);
    if (rank_ == root) {
      check_count(inputs[0], "inputs");
      for (int peer = 0; peer < size_; ++peer) plan.pieces.push_back(piece(peer, true, inputs[0][peer]));
    }
    plan.pieces.push_back(piece(root, false, one));
    return collective(OpType::SCATTER, std::move(plan));
  }
  c10::intrusive_ptr<c10d::Work> reduce_scatter(
      Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts) override {
    check_count(inputs.at(0), "inputs");
    Plan plan = plan_of(inputs[0], outputs, opts.timeout);
    add_reduction(plan, single(outputs), inputs[0], opts.reduceOp, true);
    return collective(OpType::REDUCE_SCATTER, std::move(plan));
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      Tensor& output, Tensor& input, const c10d::ReduceScatterOptions& opts) override {
    Plan plan = plan_of({input}, {output}, opts.timeout);
    add_reduction(plan, output, parts_of(input), opts.reduceOp, true);
    return collective(OpType::_REDUCE_SCATTER_BASE, std::move(plan));
  }
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) override {
    Plan plan = plan_of(inputs, outputs, opts.timeout);
    for (size_t n = 0; n < inputs.size(); ++n) add_reduction(plan, outputs[n], parts_of(inputs[n]), opts.reduceOp, true);
    return collective(OpType::REDUCE_SCATTER_TENSOR_COALESCED, std::move(plan));
  }
  c10::intrusive_ptr<c10d::Work> alltoall(
      Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override {
    check_count(outputs, "outputs");
    check_count(inputs, "inputs");
    Plan plan = plan_of(inputs, outputs, opts.timeout);
    for (int peer = 0; peer < size_; ++peer) plan.pieces.push_back(piece(peer, true, inputs[peer]));
    for (int peer = 0; peer < size_; ++peer) plan.pieces.push_back(piece(peer, false, outputs[peer]));
    return collective(OpType::ALLTOALL, std::move(plan));
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(
      Tensor& output, Tensor& input, std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes,
      const c10d::AllToAllOptions& opts) override {
    auto cut = [this](const Tensor& whole, const std::vector<int64_t>& sizes) {
      if (sizes.empty()) return parts_of(whole);
      return whole.detach().split_with_sizes(sizes);
    };
    Plan plan = plan_of({input}, {output}, opts.timeout);
    const Tensors inputs = cut(input, input_sizes), outputs = cut(output, output_sizes);
    for (int peer = 0; peer < size_; ++peer) plan.pieces.push_back(piece(peer, true, inputs[peer]));
    for (int peer = 0; peer < size_; ++peer) plan.pieces.push_back(piece(peer, false, outputs[peer]));
    return collective(OpType::ALLTOALL_BASE, std::move(plan));
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& opts) override {
    const int device = !opts.device_ids.empty()      ? static_cast<int>(opts.device_ids[0])
                       : opts.device.has_value()     ? opts.device->index()
                       : bound_device_id_.has_value() ? bound_device_id_->index()
                                                     : current_device();
    const Tensor token = at::zeros({1}, at::TensorOptions().dtype(at::kByte).device(device_at(device)));
    Plan plan = plan_of({token}, {token}, opts.timeout);
    const Tensors all = Tensors(size_, token);
    add_reduction(plan, token, all, c10d::ReduceOp::MAX, true);
    return collective(OpType::BARRIER, std::move(plan));
  }

 private:
  static const Tensor& single(const Tensors& tensors) {
    TORCH_CHECK(tensors.size() == 1, "testccl wants a single tensor");
    return tensors[0];
  }
  void check_count(const Tensors& tensors, const char* what) const {
    TORCH_CHECK(static_cast<int>(tensors.size()) == size_, "testccl wants as many ", what, " as there are ranks, ",
                size_, ", not ", tensors.size());
  }
  Tensors parts_of(const Tensor& whole) const {
    TORCH_CHECK(whole.numel() % size_ == 0, "testccl cannot cut ", whole.numel(), " elements for ", size_, " ranks");
    Tensors found;
    const Tensor flat = whole.detach().view(-1);
    for (int n = 0; n < size_; ++n) found.push_back(flat.narrow(0, n * (flat.numel() / size_), flat.numel() / size_));
    return found;
  }
  static char* memory_of(const Tensor& tensor) {
    if (tensor.numel() == 0) return nullptr;
    auto* at = static_cast<char*>(tensor.storage().mutable_data());
    const auto offset = tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
    return (tensor.is_privateuseone() ? host(at) : at) + offset;
  }
  static Piece piece(int peer, bool sends, const Tensor& tensor) {
    return {peer, sends, memory_of(tensor), tensor.nbytes()};
  }

  Plan plan_of(const Tensors& inputs, const Tensors& outputs, Milliseconds limit) const {
    Plan plan;
    plan.limit = limit == c10d::kUnsetTimeout ? limit_ : limit;
    for (const Tensors* side : {&inputs, &outputs}) {
      for (const Tensor& one : *side) {
        TORCH_CHECK(one.is_privateuseone() || !is_on(Switch::device_only), "No backend type associated with device type ",
                    one.device().type(), ": testccl has tensors of testdev only");
        TORCH_CHECK(one.is_contiguous() || one.is_non_overlapping_and_dense(), "Tensors must be contiguous");
        TORCH_CHECK(one.device() == (inputs.empty() ? outputs : inputs)[0].device(), "Tensors must be on one device");
        plan.kept.push_back(one);
      }
    }
    plan.outputs = outputs;
    return plan;
  }
  void add_gather(Plan& plan, const Tensor& input, const Tensors& outputs) const {
    for (int peer = 0; peer < size_; ++peer) plan.pieces.push_back(piece(peer, true, input));
    for (int peer = 0; peer < size_; ++peer) plan.pieces.push_back(piece(peer, false, outputs[peer]));
  }
  // `target` becomes what the ranks' tensors amount to; this rank has its own among `inputs`, one for each rank.
  void add_reduction(Plan& plan, const Tensor& target, const Tensors& inputs, const c10d::ReduceOp& op, bool gives) const {
    Tensors came;
    for (int peer = 0; peer < size_; ++peer) {
      const Tensor like = over(inputs[rank_].detach());
      came.push_back(peer == rank_ ? like : at::empty(like.sizes(), at::TensorOptions().dtype(like.dtype())));
      if (peer == rank_) continue;
      if (gives) plan.pieces.push_back(piece(peer, true, inputs[peer]));
      plan.pieces.push_back({peer, false, static_cast<char*>(came.back().mutable_data_ptr()), came.back().nbytes()});
    }
    const Tensor goal = over(target.detach());
    plan.after = [before = plan.after, goal, came, op] {
      before();
      const at::AutoDispatchBelowADInplaceOrView below;
      goal.copy_(reduced(came, op).view_as(goal));
    };
  }
  template <class Options>
  c10::intrusive_ptr<c10d::Work> all_reduced(OpType kind, Tensors& tensors, const Options& opts) {
    Plan plan = plan_of(tensors, tensors, opts.timeout);
    for (const Tensor& one : tensors) add_reduction(plan, one, Tensors(size_, one), opts.reduceOp, true);
    return collective(kind, std::move(plan));
  }

  c10::intrusive_ptr<c10d::Work> collective(OpType kind, Plan plan) {
    ++number_;
    const int device = plan.kept.at(0).is_privateuseone() ? plan.kept[0].device().index() : current_device();
    if (coalescing_) return coalesce(kind, device, std::move(plan));
    return issue(kind, of_group(device), std::move(plan));
  }
  c10::intrusive_ptr<c10d::Work> between(OpType kind, Tensors& tensors, int peer, int tag) {
    const Tensor& one = single(tensors);
    TORCH_CHECK(peer >= 0 && peer < size_ && peer != rank_, "testccl: rank ", rank_, " has no peer ", peer);
    const bool sends = kind == OpType::SEND;
    Plan plan = plan_of({one}, {one}, c10d::kUnsetTimeout);
    const int device = one.is_privateuseone() ? one.device().index() : current_device();
    if (coalescing_) {
      plan.pieces = {piece(peer, sends, one)};
      return coalesce(kind, device, std::move(plan));
    }
    ++number_of_pairs_;
    if (bound_device_id_.has_value() && is_on(Switch::ordered)) {
      plan.pieces = {piece(peer, sends, one)};
      return issue(kind, of_group(device), std::move(plan));
    }
    const int low = std::min(rank_, peer), high = std::max(rank_, peer);
    std::string key = std::to_string(low) + ":" + std::to_string(high);
    // gloo's order: what has another direction or another tag does not wait
    if (!is_on(Switch::ordered)) key += (sends == (rank_ == low) ? ">" : "<") + std::to_string(tag);
    plan.pieces = {piece(rank_ == low ? 1 : 0, sends, one)};
    return issue(kind, communicator(key, device, rank_ == low ? 0 : 1, 2), std::move(plan));
  }

  c10::intrusive_ptr<c10d::Work> coalesce(OpType kind, int device, Plan plan) {
    coalesced_device_ = device;
    coalesced_.limit = plan.limit;
    coalesced_.pieces.insert(coalesced_.pieces.end(), plan.pieces.begin(), plan.pieces.end());
    coalesced_.outputs.insert(coalesced_.outputs.end(), plan.outputs.begin(), plan.outputs.end());
    coalesced_.kept.insert(coalesced_.kept.end(), plan.kept.begin(), plan.kept.end());
    coalesced_.after = [first = coalesced_.after, then = plan.after] {
      first();
      then();
    };
    return c10::make_intrusive<Swallowed>(rank_, kind);
  }

  c10::intrusive_ptr<c10d::Work> issue(OpType kind, std::shared_ptr<Communicator> communicator, Plan plan) {
    if (auto raised = communicator->stream.error()) std::rethrow_exception(raised);
    Stream& stream = communicator->stream;
    Stream& callers = current_stream(stream.device);
    auto future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{device_at(stream.device)});
    const bool at_once = is_on(Switch::futures);
    stream.after(callers.mark());
    stream.submit([communicator, pieces = plan.pieces, after = plan.after, limit = plan.limit, outputs = plan.outputs,
                   future, at_once] {
      std::exception_ptr raised;
      try {
        communicator->transport.exchange(pieces, limit);
        after();
      } catch (...) {
        raised = std::current_exception();
      }
      if (!at_once) {
        if (raised) {
          future->setError(raised);
        } else {
          const c10::StreamGuard guard(of_torch(pool_stream(communicator->stream.device)));
          future->markCompleted(c10::IValue(outputs));
        }
      }
      if (raised) std::rethrow_exception(raised);
    });
    const uint64_t number = kind == OpType::SEND || kind == OpType::RECV ? number_of_pairs_ : number_;
    auto work = c10::make_intrusive<Work>(rank_, kind, communicator, stream.mark(), plan, number);
    work->future = future;
    if (at_once) {
      const c10::StreamGuard guard(of_torch(stream));
      future->markCompleted(c10::IValue(plan.outputs));
    }
    return work;
  }

  std::shared_ptr<Communicator> of_group(int device) { return communicator("all", device, rank_, size_); }

  std::shared_ptr<Communicator> communicator(const std::string& key, int device, int rank, int size) {
    const std::string name = key + "@" + std::to_string(device);
    std::shared_ptr<Communicator> made;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      TORCH_CHECK(!ended_, "testccl: the group was destroyed or aborted");
      auto& known = communicators_[name];
      if (known) return known;
      made = known = std::make_shared<Communicator>(device, rank, size);
    }
    auto connect = [made, store = store_, key, limit = limit_] {
      const Meeting meeting{
          [store, key](const std::string& who, const std::string& what) { store->set(key + "/" + who, what); },
          [store, key, limit, made](const std::string& who) {
            const auto deadline = std::chrono::steady_clock::now() + limit;
            while (true) {
              try {
                store->wait({key + "/" + who}, Milliseconds(500));
                return store->get_to_str(key + "/" + who);
              } catch (const std::exception&) {
                if (made->transport.aborted() || std::chrono::steady_clock::now() > deadline) throw;
              }
            }
          }};
      made->transport.connect(meeting, limit);
    };
    if (is_on(Switch::lazy)) {
      try {
        connect();
      } catch (...) {
        std::lock_guard<std::mutex> lock(mutex_);
        communicators_.erase(name);
        throw;
      }
    } else {
      made->stream.submit(connect);
    }
    return made;
  }

  void end(bool now) {
    std::map<std::string, std::shared_ptr<Communicator>> all;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
      all.swap(communicators_);
    }
    for (auto& [key, one] : all) {
      if (now) {
        one->transport.abort();
      } else {
        const Mark mark = one->stream.mark();
        mark.require();
        mark.wait();
      }
    }
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  Milliseconds limit_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Communicator>> communicators_;
  bool ended_ = false;
  bool coalescing_ = false;
  Plan coalesced_;
  int coalesced_device_ = -1;
  uint64_t number_ = 0, number_of_pairs_ = 0;
};

}  // namespace

void bind_backend(pybind11::module_& m) {
  m.def("create_backend",
        [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, double seconds)
            -> c10::intrusive_ptr<c10d::Backend> {
          return c10::make_intrusive<Testccl>(store, rank, size, Milliseconds(static_cast<int64_t>(1000 * seconds)));
        },
        pybind11::call_guard<pybind11::gil_scoped_release>());
}

}  // namespace testdev
